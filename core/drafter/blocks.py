"""Sequences of tokens in blocks: appending, reading, giving back. Every appended token is indexed at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.core.drafter.arrays import BLOCK, BLOCK_BITS, MARGIN, Store
from slipstream.core.drafter.compiled import inlined, jit
from slipstream.core.drafter.contexts import LONGEST_ORDER, index_position


@inlined
def take_block(store: Store, sequence: int, everywhere: bool) -> int:
    """Give a sequence its next block, with an empty margin; -1 when no block is free."""
    height = store.free[0]
    if height == 0:
        return -1
    block = int(store.free[height])
    store.free[0] = height - 1
    previous = store.sequence[sequence].last
    if previous < 0:
        store.sequence[sequence].first = block
    else:
        store.block[previous].following = block
    store.sequence[sequence].last = block
    store.block[block].following = -1
    store.block[block].owner = sequence
    store.block[block].fill = MARGIN
    store.block[block].everywhere = everywhere
    return block


@inlined
def extend(
    store: Store,
    sequence: int,
    new: NDArray[np.int32],
    start: int,
    stop: int,
    everywhere: bool,
    hashes: NDArray[np.uint64],
) -> int:
    """Append new[start:stop] to an open sequence and index it; blocks hold responses or other text, not both.

    Returns how many were appended; fewer when no block is free.
    """
    key = store.sequence[sequence].scope_key
    block = store.sequence[sequence].last
    for k in range(start, stop):
        fill = store.block[block].fill
        if fill == BLOCK or store.block[block].everywhere != everywhere:
            if fill == MARGIN:
                store.block[block].everywhere = everywhere
            else:
                end = block * BLOCK + fill
                block = take_block(store, sequence, everywhere)
                if block < 0:
                    return k - start
                for i in range(MARGIN):
                    store.token[block * BLOCK + i] = store.token[end - MARGIN + i]
        position = block * BLOCK + store.block[block].fill
        store.token[position] = new[k]
        store.block[block].fill += 1
        store.sequence[sequence].length += 1
        index_position(store.token, store.slots, store.counts, position, key, everywhere, hashes)
    return stop - start


@jit
def open_sequence(store: Store, sequence: int, margin: NDArray[np.int32]) -> bool:
    """Give a sequence its first block; `margin` (int32[MARGIN]) stands before it. False when no block is free."""
    store.sequence[sequence].length = 0
    store.sequence[sequence].first = -1
    store.sequence[sequence].last = -1
    block = take_block(store, sequence, False)
    if block < 0:
        return False
    for i in range(MARGIN):
        store.token[block * BLOCK + i] = margin[i]
    return True


@jit
def append(store: Store, sequence: int, new: NDArray[np.int32], everywhere: bool) -> int:
    """Append tokens to an open sequence and index them; see `extend`."""
    return extend(store, sequence, new, 0, new.size, everywhere, np.empty(LONGEST_ORDER + 1, np.uint64))


@jit
def release(store: Store, sequence: int) -> int:
    """Give the blocks of a sequence back and return how many. Slots of the index that point there die by themselves."""
    count = 0
    block = store.sequence[sequence].first
    while block >= 0:
        store.block[block].owner = -1
        store.block[block].fill = 0
        store.free[0] += 1
        store.free[store.free[0]] = block
        count += 1
        block = store.block[block].following
    store.sequence[sequence].first = -1
    store.sequence[sequence].last = -1
    store.sequence[sequence].length = 0
    return count


@jit
def common_prefix(store: Store, sequence: int, other: NDArray[np.int32], start: int) -> int:
    """How many leading tokens of a sequence equal those of other[start:]."""
    n = 0
    block = store.sequence[sequence].first
    while block >= 0:
        for i in range(MARGIN, store.block[block].fill):
            if start + n == other.size or store.token[block * BLOCK + i] != other[start + n]:
                return n
            n += 1
        block = store.block[block].following
    return n


@jit
def read(store: Store, sequence: int, tokens: NDArray[np.int32], everywhere: NDArray[np.bool_]) -> None:
    """Copy a sequence: its tokens, and which of them are offered to other groups; both of its length."""
    n = 0
    block = store.sequence[sequence].first
    while block >= 0:
        for i in range(MARGIN, store.block[block].fill):
            tokens[n] = store.token[block * BLOCK + i]
            everywhere[n] = store.block[block].everywhere == 1
            n += 1
        block = store.block[block].following


@jit
def reindex(store: Store, sequences: NDArray[np.int32], slots: NDArray[np.uint32], counts: NDArray[np.int64]) -> None:
    """Index `sequences`, oldest first, in an empty table."""
    hashes = np.empty(LONGEST_ORDER + 1, np.uint64)
    for sequence in sequences:
        key = store.sequence[sequence].scope_key
        block = store.sequence[sequence].first
        while block >= 0:
            everywhere = store.block[block].everywhere == 1
            for i in range(MARGIN, store.block[block].fill):
                index_position(store.token, slots, counts, block * BLOCK + i, key, everywhere, hashes)
            block = store.block[block].following


@inlined
def is_known(store: Store, position: int) -> bool:
    """Whether a token stands at `position` now."""
    return bool((position & (BLOCK - 1)) < store.block[position >> BLOCK_BITS].fill)


@inlined
def after(store: Store, position: int) -> int:
    """The position that follows in the same sequence, its token known or not; -1 when that cannot be said yet."""
    block = store.block[position >> BLOCK_BITS]
    offset = (position & (BLOCK - 1)) + 1
    if offset >= block.fill and block.following >= 0:
        return int(block.following) * BLOCK + MARGIN
    return position + 1 if offset < BLOCK else -1


@inlined
def agreement(token: NDArray[np.int32], position: int, context: NDArray[np.int32], end: int, most: int) -> int:
    """How many tokens before `position` equal those before index `end` of `context`, at most `most`."""
    n = 0
    most = min(most, min(position & (BLOCK - 1), end))
    while n < most and token[position - 1 - n] == context[end - 1 - n] and context[end - 1 - n] >= 0:
        n += 1
    return n
