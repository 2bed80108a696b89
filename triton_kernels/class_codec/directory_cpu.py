"""Sizes and counts of a message, all checked before anything is allocated or decoded."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..jit import jit
from .lanes import LANES
from .planes import CLASSES, COUNT, TRAILING, TRUNCATED, get_varint


@jit
def read_header(
    data: Any, at: int, stop: int, classes: int, word: int, counts: Any, sums: Any
) -> tuple[int, int, int, int]:
    """Header of a coded block; returns (error, absolute mode, bytes of the unary plane, where the planes start).

    counts, sums: int64[8], filled per class with changes and with the sum of lengths. That the changes can be in the
    bytes of the block is checked here, so that memory for them is bounded by the size of the message.
    """
    counts[:] = 0
    sums[:] = 0
    if at >= stop:
        return TRUNCATED, 0, 0, at
    active = np.int64(data[at])
    if active == 0 or active >> classes:
        return CLASSES, 0, 0, at
    head, at = get_varint(data, at + 1, stop)
    if head < 0:
        return -head, 0, 0, at
    total = 0
    for c in range(classes):
        if (active >> c) & 1:
            number, at = get_varint(data, at, stop)
            if number < 0:
                return -number, 0, 0, at
            if number == 0:
                return COUNT, 0, 0, at
            counts[c] = number
            total += number
            if not head & 1:
                number, at = get_varint(data, at, stop)
                if number < 0:
                    return -number, 0, 0, at
                if number > word * counts[c]:
                    return COUNT, 0, 0, at
                sums[c] = number
    if at + (head >> 1) + (total + 7) // 8 > stop:
        return TRUNCATED, 0, 0, at
    return 0, head & 1, head >> 1, at


@jit
def scan_blocks(data: Any, n: int, width: int, classes: int, block: int) -> tuple[int, Any, Any, Any]:
    """Check the directory and every block's header.

    Returns (error, index of each stored block, byte offsets of the blocks and the end, changes before each and all).
    """
    blocks = (n + block - 1) // block
    none = np.zeros(1, np.int64)
    if data.size == 0:
        return 0, none[:0], none, none
    at = (blocks + 7) // 8
    if data.size < at:
        return TRUNCATED, none, none, none
    stored = 0
    for b in range(8 * at):
        if (data[b >> 3] >> (b & 7)) & 1:
            if b >= blocks:
                return TRAILING, none, none, none
            stored += 1
    if stored == 0:
        return COUNT, none, none, none
    index, offsets = np.empty(stored, np.int64), np.zeros(stored + 1, np.int64)
    k = 0
    for b in range(blocks):
        if (data[b >> 3] >> (b & 7)) & 1:
            size, at = get_varint(data, at, data.size)
            if size < 0:
                return -size, none, none, none
            if size > min(block, n - b * block) * width:
                return COUNT, none, none, none
            index[k] = b
            offsets[k + 1] = offsets[k] + size
            k += 1
    offsets += at
    if offsets[stored] != data.size:
        return (TRUNCATED if offsets[stored] > data.size else TRAILING), none, none, none
    before = np.zeros(stored + 1, np.int64)
    counts, sums = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    for k in range(stored):
        room = min(block, n - index[k] * block)
        total = room
        if offsets[k + 1] - offsets[k] != room * width:
            error = read_header(data, offsets[k], offsets[k + 1], classes, 8 * width, counts, sums)[0]
            if error:
                return error, none, none, none
            total = counts.sum()
            if total > room:
                return COUNT, none, none, none
        before[k + 1] = before[k] + total
    return 0, index, offsets, before
