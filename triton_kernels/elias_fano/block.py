"""The constants of a level 0 block (see the package)."""

BLOCK = 65_536
"""Elements a block; positions inside it fit 16 bits."""
HEADER = 8
"""Bytes of a block header."""
SPARSE, DENSE = 0, 1
"""Block modes."""

TRUNCATED, INDEX, MODE, ORDER = range(1, 5)
ERRORS = {
    TRUNCATED: "it is truncated or has trailing bytes",
    INDEX: "block indices are out of order or out of range",
    MODE: "a block header has an unknown mode or an impossible count",
    ORDER: "positions out of order",
}
