"""What encoder and decoder must agree on: the classes of old values, and the constants of the format."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 18
"""Elements a block; a multiple of 64."""
MAX_CLASSES = 8


class Exponent(NamedTuple):
    """Where the exponent of an element is: byte = (bits >> shift) & mask, at most 255."""

    shift: int
    mask: int


BF16, FP16, FP32, FP8 = Exponent(7, 0xFF), Exponent(10, 0x1F), Exponent(23, 0xFF), Exponent(0, 0x7F)
"""Of each float type. Both kinds of fp8 are classed by their whole magnitude byte."""


class Classes(NamedTuple):
    """Classes of elements by the exponent byte of their old value, in ascending order of that byte."""

    edges: tuple[int, ...]
    """The highest exponent byte of each class but the last, strictly ascending, at most 254."""
    orders: tuple[int, ...]
    """Order of the exponential-Golomb code of the magnitudes of each class."""

    @property
    def number(self) -> int:
        """Number of classes, 1 to 8."""
        return len(self.orders)

    def table(self) -> NDArray[np.uint8]:
        """uint8[256], the class of every exponent byte."""
        return np.searchsorted(np.array(self.edges, np.int64), np.arange(256), side="left").astype(np.uint8)

    @lru_cache  # noqa: B019 - a sync has a few maps and thousands of sections; what raises is not kept
    def check(self, width: int) -> None:
        """Refuse what cannot code elements of `width` bytes.

        Raises:
            ValueError: classes that are not 1 to 8 ranges of exponent bytes, or a code order as wide as an element.
        """
        edges = (-1, *self.edges, 255)
        if not 1 <= self.number <= MAX_CLASSES or len(self.edges) != self.number - 1:
            raise ValueError(f"expected 1 to {MAX_CLASSES} classes and an edge less, got {self}")
        if any(b <= a for a, b in pairwise(edges)):
            raise ValueError(f"expected strictly ascending edges in 0..254, got {self.edges}")
        if not all(0 <= r < 8 * width for r in self.orders):
            raise ValueError(f"expected code orders in 0..{8 * width - 1}, got {self.orders}")
