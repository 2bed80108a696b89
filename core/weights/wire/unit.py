"""What a codec knows of the unit it encodes or decodes."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]
"""Elements as unsigned integers of their width."""
I64 = NDArray[np.int64]


class OldValues(Protocol):
    """The elements of a unit at the base version; both ends have them, and neither copies them without need."""

    @property
    def numel(self) -> int:
        """Elements of the unit."""

    @property
    def dtype(self) -> str:
        """Wire name of their dtype, a key of `tensors.DTYPES`."""

    def all(self) -> Bits:
        """unsigned[numel]: every element, in order. Reads the whole unit."""

    def at(self, positions: I64) -> Bits:
        """unsigned[n]: the elements at ascending `positions`."""


def bits_dtype(width: int) -> np.dtype[Any]:
    """The unsigned numpy dtype of elements of `width` bytes."""
    return np.dtype(f"<u{width}")
