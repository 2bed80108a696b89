"""The class codec on the host: blocks encoded and decoded by several threads; `reference` specifies the bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bit_planes import padded
from ..errors import CorruptBlockError
from ..packed import RUN, PackedChanges, PackedUnits
from ..threads import run, split
from .classes import BLOCK, Classes, Exponent
from .decode_cpu import decode_all, scan_all
from .encode_cpu import encode_blocks, room
from .lanes import LANES
from .planes import ERRORS, put_varint
from .scan import pack_edges

LEAST = 4  # blocks a thread takes at least


@lru_cache
def parameters(classes: Classes, exponent: Exponent) -> tuple[NDArray[np.uint8], NDArray[np.int64], int, int]:
    """Classes and exponent as the compiled functions take them."""
    return np.array(classes.edges, np.uint8), np.array(classes.orders, np.int64), exponent.shift, exponent.mask


@lru_cache
def _row(classes: Classes, exponent: Exponent) -> tuple[int, ...]:
    """A row of the maps that `scan_all` takes."""
    edges = int(np.uint64(pack_edges(np.array(classes.edges, np.uint8))).astype(np.int64))
    orders = classes.orders + (0,) * (LANES - classes.number)
    return classes.number, exponent.shift, exponent.mask, edges, *orders


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
    return unpack_all(data, np.array([[0, data.size, n, 0]]), [(classes, exponent)], [old], dtype, block).changes


def unpack_all(
    data: NDArray[np.uint8],
    sections: NDArray[np.int64],
    maps: Sequence[tuple[Classes, Exponent]],
    olds: Sequence[NDArray[Any] | None],
    dtype: Any,
    block: int = BLOCK,
) -> PackedUnits:
    """Inverse of `encode` for the messages of several units; see the package."""
    like, table = np.empty(0, dtype), np.array([_row(*known) for known in maps], np.int64)
    addresses = [0 if old is None else old.ctypes.data for old in olds]
    sections = np.column_stack((sections, np.array(addresses, np.int64)))
    units, width, each = sections.shape[0], like.itemsize, -(-block // RUN)
    room = int((-(-sections[:, 2] // block)).sum())
    index, runs = np.empty(room, np.int64), np.empty(units + 1, np.int64)
    offsets, before = np.empty((2, room + units), np.int64)
    error = scan_all(data, sections, table, width, block, index, offsets, before, runs)
    _refuse(error, sections)
    blocks = int(runs[-1])
    count = int(before[blocks + units - 1])
    bases, starts = np.empty(blocks * each, np.int64), np.empty(blocks * each + 1, np.int64)
    moved = np.empty(bases.size, np.bool_)
    starts[-1] = count
    places, payload = np.empty(count, np.uint16), np.empty(count, np.int64 if width > 2 else np.int32)
    plane = padded(data)

    def piece(begin: int, end: int) -> int:
        found = (plane, sections, table, index, offsets, before, runs, begin, end)
        return decode_all(*found, like, block, bases, starts, places, payload, moved)

    for error in run(piece, split(blocks, LEAST)):
        _refuse(error, sections)
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


def _refuse(error: int, sections: NDArray[np.int64]) -> None:
    if error:
        size, numel = sections[:, 1:3].sum(0).tolist()
        raise CorruptBlockError(f"cannot decode {size} bytes for {numel} elements: {ERRORS[error]}")
