"""What no codec with the old exponent as its only context can beat, for the changes of one part."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.triton_kernels.class_codec import BLOCK, Exponent
from slipstream.triton_kernels.class_codec.reference import monotone


def exponent_context_bound(
    old: NDArray[Any], positions: NDArray[np.int64], values: NDArray[Any], exponent: Exponent, block: int = BLOCK
) -> tuple[float, float]:
    """Bits of the positions and of the values of one part, without any header or table.

    Args:
        old, positions, values, exponent: as `class_codec.encode` takes them.
        block: elements a block.
    """
    return positions_bound(old, positions, exponent, block), values_bound(old[positions], values, exponent)


def positions_bound(old: NDArray[Any], positions: NDArray[np.int64], exponent: Exponent, block: int = BLOCK) -> float:
    """Binomial entropy n H(k / n) of each (block, exponent), n elements of which k changed."""
    byte = (old >> exponent.shift & exponent.mask).astype(np.uint8)
    of_change = byte[positions].astype(np.int64)
    bits = 0.0
    for start in range(0, old.size, block):
        here = slice(*np.searchsorted(positions, (start, start + block)))
        n = np.bincount(byte[start : start + block], minlength=256)
        k = np.bincount(of_change[here], minlength=256)
        bits += float((_plogp(n) - _plogp(k) - _plogp(n - k)).sum())
    return bits


def values_bound(before: NDArray[Any], after: NDArray[Any], exponent: Exponent) -> float:
    """Order-0 entropy of the deltas in units of the last place, given the exponent, over all changes given."""
    of_change = (before >> exponent.shift & exponent.mask).astype(np.int64)
    width = before.itemsize
    delta = monotone(after.astype(np.int64), width) - monotone(before.astype(np.int64), width)
    _, joint = np.unique(of_change << (8 * width + 2) | (delta + (1 << (8 * width))), return_counts=True)
    return float(_plogp(np.bincount(of_change)).sum() - _plogp(joint).sum())


def order_0_bound(elements: int, before: NDArray[Any], after: NDArray[Any]) -> float:
    """What no codec without context can beat: binomial entropy of the positions, order-0 entropy of the deltas."""
    n, k = np.array([elements]), np.array([before.size])
    return float((_plogp(n) - _plogp(k) - _plogp(n - k))[0]) + values_bound(before, after, Exponent(0, 0))


def _plogp(count: NDArray[Any]) -> NDArray[np.float64]:
    """count * log2(count), 0 for 0."""
    return np.asarray(count * np.log2(np.maximum(count, 1)))
