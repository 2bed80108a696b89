"""The suffix index: for a context of n tokens, the latest positions that follow it.

One table serves every context length and both scopes (a prompt group, and everything). A bucket is one cache line of
slots in order of insertion; a full bucket forgets its oldest slot, and one context keeps at most `KEEP`. Nothing is
ever deleted: a slot is believed only after the tokens before its position were compared, so positions of evicted
sequences fall out by themselves. Matches longer than the longest context are found by following candidates token by
token (`candidates`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from slipstream.core.drafter.arrays import BLOCK, BLOCK_BITS, BUCKET, MARGIN, TAG_BITS, TAG_MASK, Store
from slipstream.core.drafter.compiled import inlined, jit

GROUP_ORDERS: Final = (8, 5, 3, 2, 1)
"""Context lengths indexed within a prompt group, longest first."""
GLOBAL_ORDERS: Final = (8, 5, 3, 2)
"""Context lengths indexed over everything, longest first."""
LONGEST_ORDER: Final = 8
KEEP: Final = 8
"""Positions of one context that a bucket keeps."""
EVERYWHERE: Final = np.uint64(0)
"""Scope key of the contexts over everything."""

_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_SPREAD: Final = np.uint64(0xD6E8FEB86659FD93)


@inlined
def hash_contexts(token: NDArray[np.int32], end: int, hashes: NDArray[np.uint64]) -> int:
    """Hash the contexts that end before index `end` of `token`.

    for n in 1..LONGEST_ORDER, until a filler: hashes[n] = hash of token[end - n : end]
    Returns the longest n.
    """
    h = np.uint64(0)
    for n in range(1, LONGEST_ORDER + 1):
        value = token[end - n]
        if value < 0:
            return n - 1
        h = (h ^ np.uint64(value + 1)) * _FACTOR
        h ^= h >> np.uint64(29)
        hashes[n] = h
    return LONGEST_ORDER


@inlined
def place(store: Store, context_hash: np.uint64, scope_key: np.uint64, order: int) -> tuple[int, np.uint32]:
    """Bucket and tag of a context of `order` tokens in a scope."""
    key = (context_hash ^ scope_key ^ np.uint64(order)) * _SPREAD
    key ^= key >> np.uint64(32)
    key *= _FACTOR
    bits = np.uint64(store.counts[0])
    bucket = np.int64(key >> (np.uint64(64) - bits))
    tag = np.uint32(key >> (np.uint64(64 - TAG_BITS) - bits)) & TAG_MASK
    return bucket, tag


@inlined
def insert(store: Store, bucket: int, tag: np.uint32, position: int) -> None:
    """Put `position` first in its bucket.

    the slot that goes: the KEEP-th of the same tag, else the first empty one, else the last
    """
    slots = store.slots
    same = 0
    leaving = -1
    for i in range(BUCKET):
        slot = slots[bucket, i]
        if slot == 0:
            leaving = i
            store.counts[1] += 1
            break
        if slot & TAG_MASK == tag:
            same += 1
            if same == KEEP:
                leaving = i
                break
    if leaving < 0:
        leaving = BUCKET - 1
        store.counts[2] += 1
    for i in range(leaving, 0, -1):
        slots[bucket, i] = slots[bucket, i - 1]
    slots[bucket, 0] = np.uint32(position << TAG_BITS) | tag


@inlined
def index_position(
    store: Store, position: int, scope_key: np.uint64, everywhere: bool, hashes: NDArray[np.uint64]
) -> None:
    """Index the token at `position` under each context before it: in its group, and `everywhere` if it may be offered
    to other groups."""
    longest = hash_contexts(store.token, position, hashes)
    for order in GROUP_ORDERS:
        if order <= longest:
            bucket, tag = place(store, hashes[order], scope_key, order)
            insert(store, bucket, tag, position)
    if everywhere:
        for order in GLOBAL_ORDERS:
            if order <= longest:
                bucket, tag = place(store, hashes[order], EVERYWHERE, order)
                insert(store, bucket, tag, position)


@inlined
def take_block(store: Store, sequence: int) -> int:
    """Give a sequence its next block, with an empty margin; -1 when no block is free."""
    height = store.free[0]
    if height == 0:
        return -1
    block = store.free[height]
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
    return block


@inlined
def extend(store: Store, sequence: int, new: NDArray[np.int32], start: int, stop: int, everywhere: bool, hashes: NDArray[np.uint64]) -> int:
    """Append new[start:stop] to a sequence that has a block, and index it.

    Returns how many were appended; fewer when no block is free.
    """
    key = store.sequence[sequence].scope_key
    block = store.sequence[sequence].last
    for k in range(start, stop):
        if store.block[block].fill == BLOCK:
            full = block
            block = take_block(store, sequence)
            if block < 0:
                return k - start
            for i in range(MARGIN):
                store.token[block * BLOCK + i] = store.token[(full + 1) * BLOCK - MARGIN + i]
        position = block * BLOCK + store.block[block].fill
        store.token[position] = new[k]
        store.block[block].fill += 1
        store.sequence[sequence].length += 1
        index_position(store, position, key, everywhere, hashes)
    return stop - start


@jit
def open_sequence(store: Store, sequence: int, margin: NDArray[np.int32]) -> bool:
    """Give a sequence its first block; `margin` (int32[MARGIN]) stands before it. False when no block is free."""
    block = take_block(store, sequence)
    if block >= 0:
        store.token[block * BLOCK : block * BLOCK + MARGIN] = margin
    return block >= 0


@jit
def append(store: Store, sequence: int, new: NDArray[np.int32], everywhere: bool) -> int:
    """Append tokens to an open sequence and index them; see `extend`."""
    return extend(store, sequence, new, 0, new.size, everywhere, np.empty(LONGEST_ORDER + 1, np.uint64))


@inlined
def is_known(store: Store, position: int) -> bool:
    """Whether a token stands at `position` now."""
    return (position & (BLOCK - 1)) < store.block[position >> BLOCK_BITS].fill


@inlined
def after(store: Store, position: int) -> int:
    """The position that follows in the same sequence; -1 at the end of its last, full block."""
    if (position & (BLOCK - 1)) < BLOCK - 1:
        return position + 1
    following = store.block[position >> BLOCK_BITS].following
    return following * BLOCK + MARGIN if following >= 0 else -1


@inlined
def agreement(token: NDArray[np.int32], position: int, context: NDArray[np.int32], end: int, most: int) -> int:
    """How many tokens before `position` equal those before index `end` of `context`, at most `most`."""
    n = 0
    most = min(most, min(position & (BLOCK - 1), end))
    while n < most and token[position - 1 - n] == context[end - 1 - n] and context[end - 1 - n] >= 0:
        n += 1
    return n
