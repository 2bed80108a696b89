"""The specification of level 0, in plain Python. Layout of a block, all little-endian, byte-aligned:

    u32 block index | u32 word = (count - 1) | mode << 16 | low width << 20
    mode SPARSE: low plane   ceil(count * l / 8) bytes       the l low bits of each position
                 high plane  ceil((count + (n >> l) + 1) / 8) bytes   bit (j + (position_j >> l)) set for each j
                 values      count * width bytes             in position order
    mode DENSE:  values      n * width bytes                 every element of the block (count = n)

`n` is the number of elements of the block (the last one is shorter); `l` is the smallest that minimises the size of the
planes; a block is DENSE when that is not larger. Blocks without a change are not stored.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptBlockError
from .block import BLOCK, DENSE, HEADER, SPARSE


def packed(number: int, bits: int) -> bytes:
    """The `bits` low bits of a number as bytes, least significant first."""
    return number.to_bytes((bits + 7) // 8, "little")


def plane_sizes(count: int, n: int, low: int) -> tuple[int, int]:
    """Bytes of the low and of the high plane."""
    return (count * low + 7) // 8, (count + (n >> low) + 1 + 7) // 8


def encode_block(index: int, offsets: list[int], values: NDArray[Any], old: NDArray[Any]) -> bytes:
    """Encode the changes at `offsets` in a block that held `old`; at least one."""
    count, n = len(offsets), old.size
    low = min(range(17), key=lambda low: sum(plane_sizes(count, n, low)))
    if sum(plane_sizes(count, n, low)) + count * values.itemsize >= n * values.itemsize:
        new = old.copy()
        new[offsets] = values
        return packed(index, 32) + packed((n - 1) | DENSE << 16, 32) + new.tobytes()
    low_plane = sum((p & ((1 << low) - 1)) << (j * low) for j, p in enumerate(offsets))
    high_plane = sum(1 << (j + (p >> low)) for j, p in enumerate(offsets))
    head = packed(index, 32) + packed((count - 1) | SPARSE << 16 | low << 20, 32)
    high_bits = count + (n >> low) + 1
    return head + packed(low_plane, count * low) + packed(high_plane, high_bits) + values.tobytes()


def encode(positions: NDArray[np.int64], values: NDArray[Any], old: NDArray[Any]) -> NDArray[np.uint8]:
    """Encode the changes of a unit: its blocks that have any, ascending."""
    out = b""
    for index in np.unique(positions // BLOCK).tolist():
        here = positions // BLOCK == index
        part = old[index * BLOCK : (index + 1) * BLOCK]
        out += encode_block(index, (positions[here] - index * BLOCK).tolist(), values[here], part)
    return np.frombuffer(out, np.uint8)


def decode(data: NDArray[np.uint8], numel: int, dtype: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Inverse of `encode`."""
    raw, width = data.tobytes(), np.dtype(dtype).itemsize
    at, last = 0, -1
    positions: list[int] = []
    values = b""

    def take(size: int) -> bytes:
        nonlocal at
        if at + size > len(raw):
            raise CorruptBlockError("it is truncated")
        at += size
        return raw[at - size : at]

    while at < len(raw):
        head = take(HEADER)
        index, word = int.from_bytes(head[:4], "little"), int.from_bytes(head[4:], "little")
        n = min(BLOCK, numel - index * BLOCK)
        if index <= last or n <= 0:
            raise CorruptBlockError("block indices are out of order or out of range")
        count, mode, low, last = (word & 0xFFFF) + 1, (word >> 16) & 15, word >> 20, index
        if mode == DENSE and count == n and low == 0:
            offsets = list(range(n))
        elif mode == SPARSE and count <= n and low <= 16:
            low_bytes, high_bytes = plane_sizes(count, n, low)
            lows, high = int.from_bytes(take(low_bytes), "little"), int.from_bytes(take(high_bytes), "little")
            ones = [bit for bit in range(8 * high_bytes) if high >> bit & 1]
            offsets = [(b - j) << low | (lows >> (j * low) & ((1 << low) - 1)) for j, b in enumerate(ones)]
            ascending = all(a < b for a, b in pairwise(offsets))
            if len(ones) != count or not ascending or offsets[-1] >= n:
                raise CorruptBlockError("positions out of order")
        else:
            raise CorruptBlockError("a block header has an unknown mode or an impossible count")
        positions += [index * BLOCK + offset for offset in offsets]
        values += take(count * width)
    return np.array(positions, np.int64), np.frombuffer(values, dtype)
