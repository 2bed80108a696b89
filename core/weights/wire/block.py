"""What the block codecs share, and the constants of a level 0 block (see `elias_fano`)."""

BLOCK = 65_536
"""Elements a block; positions inside it fit 16 bits."""
HEADER = 8
"""Bytes of a block header."""
SPARSE, DENSE = 0, 1
"""Block modes."""
