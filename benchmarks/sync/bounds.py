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
    """Bits of the positions and of the values, without any header or table.

    Positions: binomial entropy n H(k / n) of each (block, exponent), n elements of which k changed.
    Values: order-0 entropy of the delta in units of the last place, given the exponent, over the whole part.

    Args:
        old, positions, values, exponent: as `class_codec.encode` takes them.
        block: elements a block.
    """
    byte = (old >> exponent.shift & exponent.mask).astype(np.uint8)
    of_change = byte[positions].astype(np.int64)
    bits_of_positions = 0.0
    for start in range(0, old.size, block):
        here = slice(*np.searchsorted(positions, (start, start + block)))
        n = np.bincount(byte[start : start + block], minlength=256)
        k = np.bincount(of_change[here], minlength=256)
        bits_of_positions += float((_plogp(n) - _plogp(k) - _plogp(n - k)).sum())
    width = old.itemsize
    delta = monotone(values.astype(np.int64), width) - monotone(old[positions].astype(np.int64), width)
    _, joint = np.unique(of_change << (8 * width + 2) | (delta + (1 << (8 * width))), return_counts=True)
    bits_of_values = float(_plogp(np.bincount(of_change)).sum() - _plogp(joint).sum())
    return bits_of_positions, bits_of_values


def _plogp(count: NDArray[Any]) -> NDArray[np.float64]:
    """count * log2(count), 0 for 0."""
    return np.asarray(count * np.log2(np.maximum(count, 1)))
