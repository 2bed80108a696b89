"""Elias-Fano blocks on the host: compiled loops, blocks shared out over threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bit_fields import GROUP, WIDEST, put_fields
from ..bit_planes import SLACK, bits_at, count_ones, list_ones, padded, word_at
from ..jit import jit
from ..packed import PackedChanges, PackedUnits
from ..threads import run, split
from .block import BLOCK, DENSE, HEADER, ORDER, SPARSE
from .headers_cpu import corrupt, scan_all

LEAST = 16  # blocks a thread takes at least


@jit
def low_width(count: int, n: int, width: int) -> tuple[int, int, int]:
    """Best (mode, l, bytes after the header) for `count` changes among `n` elements of `width` bytes."""
    best_l, best = 0, 1 << 62
    for low in range(17):
        size = (count * low + 7) // 8 + (count + (n >> low) + 1 + 7) // 8
        if size < best:
            best_l, best = low, size
    best += count * width
    if best >= n * width:
        return DENSE, 0, n * width
    return SPARSE, best_l, best


@jit
def plan(positions: Any, numel: int, width: int) -> tuple[Any, Any, Any]:
    """First change of each non-empty block (plus the end), its block index, and its byte offset (plus the end)."""
    n_changes = positions.size
    blocks = 0
    last = -1
    for i in range(n_changes):
        b = positions[i] // BLOCK
        if b != last:
            blocks += 1
            last = b
    starts = np.empty(blocks + 1, np.int64)
    index = np.empty(blocks, np.int64)
    offsets = np.empty(blocks + 1, np.int64)
    k = 0
    last = -1
    for i in range(n_changes):
        b = positions[i] // BLOCK
        if b != last:
            starts[k] = i
            index[k] = b
            k += 1
            last = b
    starts[blocks] = n_changes
    offset = 0
    for k in range(blocks):
        offsets[k] = offset
        n = min(BLOCK, numel - index[k] * BLOCK)
        offset += HEADER + low_width(starts[k + 1] - starts[k], n, width)[2]
    offsets[blocks] = offset
    return starts, index, offsets


@jit
def has_dense(blocks: Any, numel: int, width: int) -> bool:
    """Whether any block of the plan is smaller as a copy."""
    starts, index, _ = blocks
    for k in range(index.size):
        n = min(BLOCK, numel - index[k] * BLOCK)
        if low_width(starts[k + 1] - starts[k], n, width)[0] == DENSE:
            return True
    return False


@jit
def write(
    positions: Any, values: Any, dense: Any, numel: int, width: int, blocks: Any, out: Any, begin: int, end: int
) -> None:
    """Write blocks `begin` to `end` of the plan `blocks`; `dense` is the old unit, empty when no block is dense."""
    starts, index, offsets = blocks
    for k in range(begin, end):
        base = index[k] * BLOCK
        n = min(BLOCK, numel - base)
        first, count = starts[k], starts[k + 1] - starts[k]
        mode, low, _ = low_width(count, n, width)
        o = offsets[k]
        word = ((n if mode == DENSE else count) - 1) | (mode << 16) | (low << 20)
        for byte in range(4):
            out[o + byte] = (index[k] >> (8 * byte)) & 255
            out[o + 4 + byte] = (word >> (8 * byte)) & 255
        o += HEADER
        if mode == DENSE:
            start = base * width
            for byte in range(n * width):
                out[o + byte] = dense[start + byte]
            for j in range(first, first + count):
                for byte in range(width):
                    out[o + (positions[j] - base) * width + byte] = values[j * width + byte]
            continue
        low_mask = (1 << low) - 1
        accumulator = 0
        bits = 0
        for j in range(count):
            accumulator |= ((positions[first + j] - base) & low_mask) << bits
            bits += low
            while bits >= 8:
                out[o] = accumulator & 255
                o += 1
                accumulator >>= 8
                bits -= 8
        if bits > 0:
            out[o] = accumulator & 255
            o += 1
        high_bytes = (count + (n >> low) + 1 + 7) // 8
        for byte in range(high_bytes):
            out[o + byte] = 0
        for j in range(count):
            bit = j + ((positions[first + j] - base) >> low)
            out[o + (bit >> 3)] |= np.uint8(1 << (bit & 7))
        o += high_bytes
        start = first * width
        for byte in range(count * width):
            out[o + byte] = values[start + byte]


@jit
def convert(source: Any, out: Any) -> None:
    """out = source, in its own type. Slices whose indices start at 0: only so the loop vectorises."""
    for i in range(out.size):
        out[i] = source[i]


@jit
def read_places(data: Any, low_at: int, low: int, ends: Any, n: int, places: Any) -> bool:
    """Places in a block of `n` elements, from the set bits of its high plane; whether they are out of order or range.

    place = (end - changes before) << low | next `low` bits
    """
    mask = (np.uint64(1) << np.uint64(low)) - np.uint64(1)
    done, at = 0, 8 * low_at
    if low <= WIDEST:
        done = places.size & ~(GROUP - 1)
        for i in range(0, done, GROUP):
            put_fields(bits_at(data, at), low, places, i)
            at += GROUP * low
    for i in range(done, places.size):
        places[i] = bits_at(data, at) & mask
        at += low
    for i in range(places.size):
        places[i] |= (ends[i] - i) << low
    falls = 0
    for i in range(places.size - 1):
        falls += places[i + 1] <= places[i]
    return falls > 0 or places[places.size - 1] >= n


@jit
def read(
    data: Any,
    width: int,
    at: Any,
    before: Any,
    rooms: Any,
    offsets: Any,
    values: Any,
    begin: int,
    end: int,
) -> int:
    """Decode blocks `begin` to `end`, which start at bytes `at` and have `rooms` elements; return how many are corrupt.

    `before` has the changes before each block and, at its end, all; behind `data` are `SLACK` bytes.
    """
    corrupt, most = 0, 0
    for k in range(begin, end):
        most = max(most, before[k + 1] - before[k])
    ends, places = np.empty(most + SLACK, np.int32), np.empty(most, np.int32)
    for k in range(begin, end):
        o = at[k] + HEADER
        header = word_at(data, at[k])
        word, n = int(header >> np.uint64(32)), rooms[k]
        first, count, mode, low = before[k], (word & 0xFFFF) + 1, (word >> 16) & 15, word >> 20
        if mode == DENSE:
            offsets[first : first + n] = np.arange(n)
        else:
            high = o + (count * low + 7) // 8
            stop = high + (count + (n >> low) + 1 + 7) // 8
            if count_ones(data, high, stop) != count:
                corrupt += 1
                continue
            list_ones(data, high, stop, ends)
            corrupt += read_places(data, o, low, ends, n, places[:count])
            convert(places[:count], offsets[first : first + count])
            o = stop
        convert(data[o : o + count * width], values[first * width : (first + count) * width])
    return corrupt


def encode(
    positions: NDArray[np.int64], values: NDArray[Any], numel: int, dense: Callable[[], NDArray[Any]]
) -> NDArray[np.uint8]:
    """Encode the changes of a unit; see the package."""
    width = values.itemsize
    blocks = plan(positions, numel, width)
    out = np.empty(int(blocks[2][-1]), np.uint8)
    old = dense() if has_dense(blocks, numel, width) else values[:0]
    as_bytes = np.ascontiguousarray(values).view(np.uint8), np.ascontiguousarray(old).view(np.uint8)
    run(
        lambda begin, end: write(positions, *as_bytes, numel, width, blocks, out, begin, end),
        split(blocks[1].size, LEAST),
    )
    return out


def unpack(data: NDArray[np.uint8], numel: int, dtype: Any) -> PackedChanges:
    """Inverse of `encode`; see the package."""
    return unpack_all(data, np.array([[0, data.size, numel]]), dtype).changes


def unpack_all(data: NDArray[np.uint8], sections: NDArray[np.int64], dtype: Any) -> PackedUnits:
    """Inverse of `encode` for the messages of several units; see the package."""
    width = np.dtype(dtype).itemsize
    sizes, numels = sections[:, 1], sections[:, 2]
    table = np.empty((5, int(np.minimum(-(-numels // BLOCK), sizes // HEADER).sum())), np.int64)
    runs = np.empty(sections.shape[0] + 1, np.int64)
    error = scan_all(data, sections, width, BLOCK, table, runs)
    if error:
        raise corrupt(error, int(sizes.sum()), int(numels.sum()))
    blocks = int(runs[-1])
    numbers, at, _, counts, rooms = table[:, :blocks]
    starts = np.zeros(blocks + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    offsets, values = np.empty(int(starts[-1]), np.uint16), np.empty(int(starts[-1]) * width, np.uint8)
    plane = padded(data)
    wrong = run(
        lambda begin, end: read(plane, width, at, starts, rooms, offsets, values, begin, end),
        split(blocks, LEAST),
    )
    if sum(wrong):
        raise corrupt(ORDER, int(sizes.sum()), int(numels.sum()))
    return PackedUnits(
        runs, PackedChanges(numbers * BLOCK, starts, offsets, values.view(dtype), np.zeros(blocks, np.bool_))
    )


def decode(data: NDArray[np.uint8], numel: int, dtype: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Inverse of `encode`; see the package."""
    changes = unpack(data, numel, dtype)
    return changes.positions(), changes.payload
