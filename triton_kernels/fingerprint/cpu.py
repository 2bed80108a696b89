"""The fingerprint on the host: rows of the box summed by compiled loops, shared out over threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..bits import as_unsigned_numpy
from ..box import Box
from ..jit import jit
from ..threads import run, split
from .reference import GOLDEN, MODULUS, SPREAD

LEAST = 1 << 18  # elements a thread takes at least

_ONE, _SHIFT = np.uint64(1), np.uint64(32)
_GOLDEN, _SPREAD = np.uint64(GOLDEN), np.uint64(SPREAD)

BoxArrays = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def box_arrays(box: Box) -> BoxArrays:
    """Sizes, source strides and destination strides as int64 arrays, for compiled code."""
    return np.array(box.sizes, np.int64), np.array(box.src_strides, np.int64), np.array(box.dst_strides, np.int64)


@jit
def mix(index: int) -> Any:
    """The uint64 multiplier of a flat checkpoint index; all arithmetic stays uint64 (with int64 it would go float)."""
    x = (np.uint64(index) + _ONE) * _GOLDEN
    return ((x ^ (x >> _SHIFT)) * _SPREAD) | _ONE


@jit
def change_sum(positions: NDArray[np.int64], old: NDArray[Any], new: NDArray[Any]) -> Any:
    """Sum of mix(i) * (new - old) in uint64."""
    total = np.uint64(0)
    for n in range(positions.size):
        total += mix(positions[n]) * (np.uint64(new[n]) - np.uint64(old[n]))
    return total


@jit
def box_sum(
    storage: NDArray[Any],
    src_offset: int,
    dst_offset: int,
    sizes: NDArray[np.int64],
    src_strides: NDArray[np.int64],
    dst_strides: NDArray[np.int64],
    start: int,
    stop: int,
) -> Any:
    """Sum mix(source) * storage[destination] over elements [start, stop) of the box, in row-major order of k.

    while start < stop: take the rest of the row that holds `start`; find the row's source and destination by division;
    add up the row with two running indices (a plain loop, so that it vectorises when both strides are 1).
    """
    total = np.uint64(0)
    last = sizes.size - 1
    src_step, dst_step = src_strides[last], dst_strides[last]
    while start < stop:
        row = start // sizes[last]
        column = start - row * sizes[last]
        width = min(sizes[last] - column, stop - start)
        src = src_offset + column * src_step
        dst = dst_offset + column * dst_step
        for j in range(last - 1, -1, -1):
            k = row % sizes[j]
            row //= sizes[j]
            src += k * src_strides[j]
            dst += k * dst_strides[j]
        if src_step == 1 and dst_step == 1:
            for c in range(width):
                total += mix(src + c) * np.uint64(storage[dst + c])
        else:
            for c in range(width):
                total += mix(src + c * src_step) * np.uint64(storage[dst + c * dst_step])
        start += width
    return total


def total(bits: Tensor, box: Box) -> int:
    """The fingerprint of a 1-D contiguous host bits storage seen through a normalised, non-empty box."""
    storage, arrays = as_unsigned_numpy(bits), box_arrays(box)

    def piece(start: int, stop: int) -> int:
        return int(box_sum(storage, box.src_offset, box.dst_offset, *arrays, start, stop))

    return sum(run(piece, split(box.numel, LEAST))) % MODULUS
