"""Elias-Fano blocks on the host: compiled loops, blocks shared out over threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..class_codec.lanes import trailing_zeros
from ..class_codec.planes import get_bits
from ..jit import jit
from ..threads import run, split
from .block import BLOCK, DENSE, HEADER, ORDER, SPARSE
from .headers_cpu import corrupt, walk

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
def as_words(data: Any, words: Any) -> Any:
    """Copy bytes into uint64 words, the rest of the last one zeros; return how many words they fill."""
    count = (data.size + 7) // 8
    if count:
        words[count - 1] = np.uint64(0)
    target = words.view(np.uint8)
    for byte in range(data.size):
        target[byte] = data[byte]
    return count


@jit
def read(
    data: Any,
    numel: int,
    width: int,
    offsets: Any,
    before: Any,
    positions: Any,
    values: Any,
    begin: int,
    end: int,
) -> int:
    """Decode blocks `begin` to `end`; return how many are corrupt."""
    corrupt = 0
    longest = min(BLOCK, numel)
    low_plane = np.zeros(longest // 4 + 2, np.uint64)  # both planes of a block, as words
    high_plane = np.zeros(longest // 32 + 2, np.uint64)
    for k in range(begin, end):
        bad = False
        o = offsets[k]
        index: Any = 0
        word: Any = 0
        for byte in range(4):
            index |= np.int64(data[o + byte]) << (8 * byte)
            word |= np.int64(data[o + 4 + byte]) << (8 * byte)
        o += HEADER
        base = index * BLOCK
        n = min(BLOCK, numel - base)
        count, mode, low = (word & 0xFFFF) + 1, (word >> 16) & 15, word >> 20
        first = before[k]
        if mode == DENSE:
            for j in range(n):
                positions[first + j] = base + j
        else:
            high = o + (count * low + 7) // 8
            end_of_high = high + (count + (n >> low) + 1 + 7) // 8
            as_words(data[o:high], low_plane)
            words = as_words(data[high:end_of_high], high_plane)
            j = 0
            last = -1
            for at in range(words):
                plane = high_plane[at]
                while plane != np.uint64(0) and j < count:
                    bucket = 64 * at + trailing_zeros(plane) - j
                    plane &= plane - np.uint64(1)
                    position = (bucket << low) | np.int64(get_bits(low_plane, j * low, low))
                    bad |= (position <= last) | (position >= n)
                    positions[first + j] = base + position
                    last = position
                    j += 1
                bad |= plane != np.uint64(0)
            bad |= j != count
            o = end_of_high
        start = first * width
        for byte in range(count * width):
            values[start + byte] = data[o + byte]
        corrupt += bad
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


def decode(data: NDArray[np.uint8], numel: int, dtype: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Inverse of `encode`; see the package."""
    width = np.dtype(dtype).itemsize
    _, offsets, before, counts = walk(data, numel, width)
    changes = int(before[-1] + counts[-1]) if counts.size else 0
    positions = np.empty(changes, np.int64)
    values = np.empty(changes * width, np.uint8)
    wrong = run(
        lambda begin, end: read(data, numel, width, offsets, before, positions, values, begin, end),
        split(offsets.size, LEAST),
    )
    if sum(wrong):
        raise corrupt(ORDER, data.size, numel)
    return positions, values.view(dtype)
