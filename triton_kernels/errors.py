"""Errors that several packages raise."""


class CorruptBlockError(ValueError):
    """A block that no encoder writes: truncated, out of range or out of order."""
