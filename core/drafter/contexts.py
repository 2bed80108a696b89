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

from slipstream.core.drafter.arrays import BUCKET, TAG_BITS, TAG_MASK
from slipstream.core.drafter.buckets import empty_slots, lowest_bit, push_slot, slots_of_tag
from slipstream.core.drafter.compiled import inlined

GROUP_ORDERS: Final = (8, 4, 2, 1)
"""Context lengths indexed within a prompt group, longest first."""
GLOBAL_ORDERS: Final = (6, 3, 1)
"""Context lengths indexed over everything, longest first."""
LONGEST_ORDER: Final = 8
KEEP: Final = 5
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
def place(bucket_bits: int, context_hash: np.uint64, scope_key: np.uint64, order: int) -> tuple[int, int]:
    """Bucket and tag of a context of `order` tokens in a scope."""
    key = (context_hash ^ scope_key ^ np.uint64(order)) * _SPREAD
    key ^= key >> np.uint64(32)
    key *= _FACTOR
    bits = np.uint64(bucket_bits)
    bucket = int(key >> (np.uint64(64) - bits))
    tag = int((key >> (np.uint64(64 - TAG_BITS) - bits)) & np.uint64(TAG_MASK))
    return bucket, tag


@inlined
def insert(slots: NDArray[np.uint32], counts: NDArray[np.int64], bucket: int, tag: int, position: int) -> None:
    """Put `position` first in its bucket.

    the slot that goes: the KEEP-th of the same tag, else the first empty one, else the last
    """
    same = slots_of_tag(slots, bucket, tag)
    for _ in range(KEEP - 1):
        same &= same - 1
    if same:
        leaving = lowest_bit(same)
    else:
        empty = empty_slots(slots, bucket)
        leaving = lowest_bit(empty) if empty else BUCKET - 1
        counts[1] += empty != 0
        counts[2] += empty == 0
    push_slot(slots, bucket, position << TAG_BITS | tag, leaving)


@inlined
def index_position(
    token: NDArray[np.int32],
    slots: NDArray[np.uint32],
    counts: NDArray[np.int64],
    position: int,
    scope_key: np.uint64,
    everywhere: bool,
    hashes: NDArray[np.uint64],
) -> None:
    """Index the token at `position` under each context before it: in its group, and `everywhere` if it may be offered
    to other groups."""
    longest = hash_contexts(token, position, hashes)
    for order in GROUP_ORDERS:
        if order <= longest:
            bucket, tag = place(counts[0], hashes[order], scope_key, order)
            insert(slots, counts, bucket, tag, position)
    if everywhere:
        for order in GLOBAL_ORDERS:
            if order <= longest:
                bucket, tag = place(counts[0], hashes[order], EVERYWHERE, order)
                insert(slots, counts, bucket, tag, position)
