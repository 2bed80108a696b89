"""The class map of a sync: which exponents share a class, fitted to what changed, and when it needs a new fit."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.weights.wire.histogram import Histogram
from slipstream.triton_kernels.class_codec import BLOCK, MAX_CLASSES, Classes, CorruptBlockError

OUTGROWN = 1.05
"""Coded over predicted size from which a new fit pays."""
HEADER_OF_CLASS, HEADER_OF_BLOCK = 28, 40
"""Bits: two varints of 1 to 3 bytes; size, mask and head."""

F64 = NDArray[np.float64]


class Prediction(NamedTuple):
    """Size that a map should give, from the sample it was fitted on."""

    bits: float
    """Per change, headers included."""
    density: float
    """Changes an element of the sample."""

    def size(self, elements: int, changes: int) -> float:
        """Bytes for so many changes; each halving of the density makes a gap one bit longer."""
        if not changes:
            return 0.0
        longer = np.log2(self.density * elements / changes) if self.density else 0.0
        return float(changes * max(1.0, self.bits + longer) / 8)

    def outgrown(self, coded: int, elements: int, changes: int) -> bool:
        """Whether `coded` bytes say that the map no longer fits: fit a new one for the next sync."""
        return coded > OUTGROWN * self.size(elements, changes)


class ClassMap(Classes):
    """Classes that can be fitted and sent. One class gives level 1, eight give level 2."""

    __slots__ = ()

    @classmethod
    def fit(cls, histogram: Histogram, most: int = MAX_CLASSES) -> ClassMap:
        """The map of at most `most` classes with the smallest predicted size, by dynamic programming.

        best[c][j] = min over i of best[c - 1][i - 1] + bits of one class for exponents i..j
        """
        used = np.flatnonzero(histogram.elements)
        if used.size == 0:
            return cls((), (0,))
        bits, orders = _bits_of_ranges(histogram, used)
        best = [bits[0]]
        begins: list[NDArray[Any]] = [np.zeros(used.size, np.int64)]
        for _ in range(1, min(most, used.size)):
            before = np.concatenate(([np.inf], best[-1][:-1]))
            total = before[:, None] + bits
            begins.append(total.argmin(0))
            best.append(total.min(0))
        ends, last = [], used.size - 1
        for c in range(int(np.argmin([row[-1] for row in best])), -1, -1):
            ends.append((int(begins[c][last]), last))
            last = int(begins[c][last]) - 1
        ends.reverse()
        edges = tuple(int(used[last]) for _, last in ends[:-1])
        return cls(edges, tuple(int(orders[pair]) for pair in ends))

    def predict(self, histogram: Histogram) -> Prediction:
        """Size that this map gives for what `histogram` counted."""
        changes, elements = int(histogram.changes.sum()), int(histogram.elements.sum())
        if changes == 0:
            return Prediction(0.0, 0.0)
        total = _active_blocks(np.array(changes), elements) * HEADER_OF_BLOCK
        for c, order in enumerate(self.orders):
            of_class = self.table() == c
            n, k = (part[of_class].sum() for part in (histogram.elements, histogram.changes))
            lengths, residual = (part[of_class, order].sum() for part in (histogram.lengths, histogram.residual))
            total = total + _bits(n, k, lengths, residual, elements)
        return Prediction(float(total) / changes, changes / elements)

    def to_bytes(self) -> bytes:
        """2 * number of classes bytes: that number, the edges, the code orders."""
        return bytes((self.number, *self.edges, *self.orders))

    @classmethod
    def from_bytes(cls, data: bytes, width: int) -> ClassMap:
        """Inverse of `to_bytes`, for elements of `width` bytes.

        Raises:
            CorruptBlockError: `data` is no class map for them.
        """
        number = data[0] if data else 0
        if not 1 <= number <= MAX_CLASSES or len(data) != 2 * number:
            raise CorruptBlockError(f"expected a class map of 2 to {2 * MAX_CLASSES} bytes, got {data[:20]!r}")
        found = cls(tuple(data[1:number]), tuple(data[number:]))
        try:
            found.check(width)
        except ValueError as error:
            raise CorruptBlockError(str(error)) from error
        return found


def _vector_bits(n: Any, ones: Any) -> Any:
    """Expected bits of `class_codec.reference.BitVector` when the ones are spread evenly; elementwise."""
    n = np.maximum(n, 1)
    listed = np.minimum(ones, n - ones)
    low = np.frexp(64 * (2 * n - listed) // np.maximum(266 * listed, 1))[1] * (listed > 0)  # bit length of the quotient
    skip = (1 - listed / n) ** (1 << low)  # that a gap reaches 2**low
    return np.where(listed > 0, listed * (low + 1 / (1 - np.minimum(skip, 1 - 1e-12))), 0.0)


def _active_blocks(changes: Any, elements: int) -> Any:
    """Blocks' worth of headers for so many of the changes of a sample of `elements`."""
    blocks = elements / BLOCK
    return blocks * -np.expm1(-changes / blocks)


def _bits(n: Any, k: Any, lengths: Any, residual: Any, elements: int) -> Any:
    """Expected bits of a class with its header; elementwise."""
    values = _vector_bits(k + lengths, k) + k + residual
    return _vector_bits(n, k) + values + _active_blocks(k, elements) * HEADER_OF_CLASS


def _bits_of_ranges(histogram: Histogram, used: NDArray[Any]) -> tuple[F64, NDArray[Any]]:
    """Bits and best code order of a class of the exponents used[i..j], float64 and int64 [i, j]; inf for i > j."""

    def ranges(counts: NDArray[Any]) -> NDArray[Any]:
        ends = np.concatenate(([0], np.cumsum(counts[used])))
        return np.asarray(ends[None, 1:] - ends[:-1, None])

    n, k = ranges(histogram.elements), ranges(histogram.changes)
    possible = np.triu(np.ones(n.shape, np.bool_))
    n, k = np.where(possible, n, 0), np.where(possible, k, 0)
    elements = int(histogram.elements.sum())
    lengths, residual = (
        np.stack([np.where(possible, ranges(part[:, order]), 0) for order in range(8 * histogram.width)])
        for part in (histogram.lengths, histogram.residual)
    )
    bits = _bits(n, k, lengths, residual, elements)  # [order, i, j]
    return np.where(possible, bits.min(0), np.inf), bits.argmin(0)
