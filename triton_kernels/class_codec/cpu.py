"""The class codec on the host: blocks encoded and decoded by several threads; `reference` specifies the bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptBlockError
from ..threads import run, split
from .classes import BLOCK, Classes, Exponent
from .decode_cpu import apply_steps, decode_blocks
from .directory_cpu import scan_blocks
from .encode_cpu import encode_blocks, room
from .planes import ERRORS, put_varint

LEAST = 4  # blocks a thread takes at least
LEAST_STEPS = 1 << 18


def parameters(classes: Classes, exponent: Exponent) -> tuple[NDArray[np.uint8], NDArray[np.int64], int, int]:
    """Classes and exponent as the compiled functions take them."""
    return np.array(classes.edges, np.uint8), np.array(classes.orders, np.int64), exponent.shift, exponent.mask


def encode(
    old: NDArray[Any],
    positions: NDArray[np.int64],
    values: NDArray[Any],
    classes: Classes,
    exponent: Exponent,
    block: int = BLOCK,
) -> NDArray[np.uint8]:
    """Encode the changes of a part; see the package."""
    if positions.size == 0:
        return np.empty(0, np.uint8)
    starts = np.searchsorted(positions, np.arange(0, old.size + block, block))
    index = np.flatnonzero(np.diff(starts))
    starts = np.append(starts[index], positions.size)
    sizes = np.zeros(index.size, np.int64)
    parameter = parameters(classes, exponent)
    lengths = np.minimum(block, old.size - index * block)
    rooms = [room(int(n), int(k), old.itemsize) for n, k in zip(lengths, np.diff(starts), strict=True)]

    def piece(begin: int, end: int) -> NDArray[np.uint8]:
        out = np.empty(sum(rooms[begin:end]), np.uint8)  # pages that stay unwritten cost nothing
        if encode_blocks(old, positions, values, starts, index, begin, end, *parameter, block, out, sizes):
            raise ValueError("expected only values that differ from the old ones; leave the others out")
        return out[: sizes[begin:end].sum()]

    pieces = run(piece, split(index.size, LEAST))
    stored = np.zeros(-(-old.size // block), np.bool_)
    stored[index] = True
    directory, at = np.empty(4 * index.size, np.uint8), 0
    for size in sizes.tolist():
        at = put_varint(directory, at, size)
    return np.concatenate([np.packbits(stored, bitorder="little"), directory[:at], *pieces])


def decode(
    data: NDArray[np.uint8],
    n: int,
    dtype: Any,
    old: NDArray[Any] | Callable[[NDArray[np.int64]], NDArray[Any]],
    classes: Classes,
    exponent: Exponent,
    block: int = BLOCK,
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Inverse of `encode`; see the package."""
    width = np.dtype(dtype).itemsize
    if data.size == 0:
        return np.empty(0, np.int64), np.empty(0, dtype)
    error, index, offsets, before = scan_blocks(data, n, width, classes.number, block)
    _refuse(error, data, n)
    count = int(before[-1])
    positions, steps, values = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, dtype)
    dense = old if isinstance(old, np.ndarray) else np.empty(0, dtype)
    parameter = parameters(classes, exponent)

    def piece(begin: int, end: int) -> int:
        blocks = (data, n, dense, index, offsets, before, begin, end)
        return decode_blocks(*blocks, *parameter, block, positions, steps, values)

    for error in run(piece, split(index.size, LEAST)):
        _refuse(error, data, n)
    at = old[positions] if isinstance(old, np.ndarray) else old(positions)
    if at.shape != positions.shape or at.dtype != dtype:
        raise ValueError(f"expected {count} old elements of {np.dtype(dtype)}, got {at.dtype}{list(at.shape)}")
    for error in run(
        lambda begin, end: apply_steps(at, steps, values, begin, end),
        split(count, LEAST_STEPS),
    ):
        _refuse(error, data, n)
    return positions, values


def _refuse(error: int, data: NDArray[np.uint8], n: int) -> None:
    if error:
        raise CorruptBlockError(f"cannot decode {data.size} bytes for {n} elements: {ERRORS[error]}")
