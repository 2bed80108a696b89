"""The walk over block headers, always on the host: where a block starts follows from the header before it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptBlockError
from ..jit import jit
from .block import BLOCK, DENSE, ERRORS, HEADER, INDEX, MODE, SPARSE, TRUNCATED

Ints = NDArray[np.int64]


class Blocks(NamedTuple):
    """The stored blocks of a message whose headers are sound; int64[k] each."""

    numbers: Ints
    """Which blocks."""
    offsets: Ints
    """Byte where each header starts."""
    before: Ints
    """Changes before each."""
    counts: Ints
    """Changes in each."""


@jit
def scan(data: Any, numel: int, width: int, block: int, table: Any) -> tuple[int, int]:
    """Check every header and fill the int64[4, room] table (the fields of `Blocks`); return error and blocks.

    at = k = 0
    while at < size:
        index, word = u32, u32 at `at`; the index ascends and is below the blocks of the unit
        count, mode, l = fields of word; the size of the block follows, which ends within `size`
        table[:, k] = index, at, changes so far, count
        at += header + size; k += 1
    """
    capacity = (numel + block - 1) // block
    at, k, last, seen = 0, 0, -1, 0
    while at < data.size:
        if at + HEADER > data.size:
            return TRUNCATED, 0
        index: Any = 0
        word: Any = 0
        for byte in range(4):
            index |= np.int64(data[at + byte]) << (8 * byte)
            word |= np.int64(data[at + 4 + byte]) << (8 * byte)
        if index <= last or index >= capacity:  # so k stays below capacity as well
            return INDEX, 0
        n = min(block, numel - index * block)
        count, mode, low = (word & 0xFFFF) + 1, (word >> 16) & 15, word >> 20
        if mode == DENSE and count == n and low == 0:
            size = n * width
        elif mode == SPARSE and count <= n and low <= 16:
            size = (count * low + 7) // 8 + (count + (n >> low) + 1 + 7) // 8 + count * width
        else:
            return MODE, 0
        if at + HEADER + size > data.size:
            return TRUNCATED, 0
        table[0, k], table[1, k], table[2, k], table[3, k] = index, at, seen, count
        seen += count
        last = index
        at += HEADER + size
        k += 1
    return 0, k


@jit
def scan_all(data: Any, sections: Any, width: int, block: int, table: Any, runs: Any) -> int:
    """`scan` of the messages data[start : start + size] of several units; returns an error or 0.

    Args:
        sections: int64[k, 3], start and size of each message, and elements of its unit.
        table: int64[5, room], filled with the fields of `Blocks` over all messages, and the elements of each block.
        runs: int64[k + 1], filled with the blocks before each message, and all.
    """
    k, seen = 0, 0
    for i in range(sections.shape[0]):
        start, size, numel = sections[i, 0], sections[i, 1], sections[i, 2]
        runs[i] = k
        error, found = scan(data[start : start + size], numel, width, block, table[:, k:])
        if error:
            return error
        for j in range(k, k + found):
            table[1, j] += start
            table[2, j] += seen
            table[4, j] = min(block, numel - table[0, j] * block)
        k += found
        if found:
            seen = table[2, k - 1] + table[3, k - 1]
    runs[sections.shape[0]] = k
    return 0


def walk(data: NDArray[np.uint8], numel: int, width: int, block: int = BLOCK) -> Blocks:
    """The blocks of a message for a unit of `numel` elements of `width` bytes.

    Raises:
        CorruptBlockError: a header is not what an encoder writes.
    """
    table = np.empty((4, min(-(-numel // block), data.size // HEADER)), np.int64)
    error, blocks = scan(data, numel, width, block, table)
    if error:
        raise corrupt(error, data.size, numel)
    return Blocks(*table[:, :blocks])


def corrupt(error: int, size: int, numel: int) -> CorruptBlockError:
    """The error for a code of `block.ERRORS`."""
    return CorruptBlockError(f"cannot decode {size} bytes for a unit of {numel} elements: {ERRORS[error]}")
