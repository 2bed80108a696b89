"""The class codec on the host: blocks encoded and decoded by several threads; `reference` specifies the bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bit_planes import padded
from ..errors import CorruptBlockError
from ..packed import RUN, PackedChanges, PackedUnits
from ..threads import run, split
from .classes import BLOCK, Classes, Exponent
from .decode_cpu import decode_all, decode_blocks, scan_all
from .directory_cpu import scan_blocks
from .encode_cpu import encode_blocks, room
from .planes import ERRORS, put_varint

LEAST = 4  # blocks a thread takes at least


@lru_cache
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


def unpack(
    data: NDArray[np.uint8],
    n: int,
    dtype: Any,
    old: NDArray[Any] | None,
    classes: Classes,
    exponent: Exponent,
    block: int = BLOCK,
) -> PackedChanges:
    """Inverse of `encode`, up to the old values; see the package."""
    width = np.dtype(dtype).itemsize
    error, index, offsets, before = scan_blocks(data, n, width, classes.number, block)
    _refuse(error, data, n)
    count, runs = int(before[-1]), -(-block // RUN)
    bases, starts = np.empty(index.size * runs, np.int64), np.empty(index.size * runs + 1, np.int64)
    moved = np.empty(bases.size, np.bool_)
    starts[-1] = count
    places, payload = np.empty(count, np.uint16), np.empty(count, np.int64 if width > 2 else np.int32)
    plane = padded(data)
    dense = np.empty(0, dtype) if old is None else old
    parameter = parameters(classes, exponent)

    def piece(begin: int, end: int) -> int:
        blocks = (plane, n, dense, index, offsets, before, begin, end)
        return decode_blocks(*blocks, *parameter, block, width, bases, starts, places, payload, moved)

    for error in run(piece, split(index.size, LEAST)):
        _refuse(error, data, n)
    return PackedChanges(bases, starts, places, payload, moved)


def unpack_all(data: NDArray[np.uint8], sections: NDArray[np.int64], dtype: Any, block: int = BLOCK) -> PackedUnits:
    """Inverse of `encode` for the messages of several units with one class each; see the package."""
    width, each = np.dtype(dtype).itemsize, -(-block // RUN)
    room = int((-(-sections[:, 2] // block)).sum())
    index, runs = np.empty(room, np.int64), np.empty(sections.shape[0] + 1, np.int64)
    offsets, before = np.zeros(room + sections.shape[0], np.int64), np.zeros(room + sections.shape[0], np.int64)
    _refuse(scan_all(data, sections, width, block, index, offsets, before, runs), data, room * block)
    blocks = int(runs[-1])
    count = int(before[blocks + sections.shape[0] - 1])
    bases, starts = np.empty(blocks * each, np.int64), np.empty(blocks * each + 1, np.int64)
    moved = np.empty(bases.size, np.bool_)
    starts[-1] = count
    places, payload = np.empty(count, np.uint16), np.empty(count, np.int64 if width > 2 else np.int32)
    plane, none = padded(data), np.empty(0, dtype)

    def piece(begin: int, end: int) -> int:
        found = (plane, sections, index, offsets, before, runs, begin, end)
        return decode_all(*found, block, width, none, bases, starts, places, payload, moved)

    for error in run(piece, split(blocks, LEAST)):
        _refuse(error, data, room * block)
    return PackedUnits(runs * each, PackedChanges(bases, starts, places, payload, moved))


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
    changes = unpack(data, n, dtype, old if isinstance(old, np.ndarray) else None, classes, exponent, block)
    positions = changes.positions()
    at = old[positions] if isinstance(old, np.ndarray) else old(positions)
    if at.shape != positions.shape or at.dtype != dtype:
        raise ValueError(f"expected {positions.size} old elements of {np.dtype(dtype)}, got {at.dtype}{list(at.shape)}")
    try:
        return positions, changes.values(at)
    except ValueError as error:
        raise CorruptBlockError(f"cannot decode {data.size} bytes for {n} elements: {error}") from error


def _refuse(error: int, data: NDArray[np.uint8], n: int) -> None:
    if error:
        raise CorruptBlockError(f"cannot decode {data.size} bytes for {n} elements: {ERRORS[error]}")
