"""Ranks inside classes on the host: from changed elements to ranks, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..jit import jit
from ..words import popcount, trailing_zeros
from .lanes import GROUP, LANES, count_group, lanes_below, set_lane

_SELECT = np.array([([j for j in range(8) if byte >> j & 1] + [0] * 8)[:8] for byte in range(256)], np.uint8)
"""Place of the set bit of a byte with so many set bits below it."""


@jit
def pack_edges(edges: Any) -> Any:
    """The edges of all classes but the last as one uint64, a byte each, 255 above."""
    packed = np.uint64(0)
    for c in range(LANES):
        edge = edges[c] if c < edges.size else 255
        packed |= np.uint64(edge) << np.uint64(8 * c)
    return packed


@jit
def class_table(edges: Any) -> Any:
    """uint8[256], `Classes.table`."""
    table = np.empty(256, np.uint8)
    c = 0
    for byte in range(256):
        table[byte] = c
        if c < edges.size and byte == edges[c]:
            c += 1
    return table


@jit
def select_bit(mask: Any, rank: int) -> Any:
    """Place of the set bit of a uint64 that has `rank` set bits below it; it must be there.

    Prefix sums of set bits, one a byte; the byte is the first with more than rank; then a table.
    """
    sums = mask - ((mask >> np.uint64(1)) & np.uint64(0x5555555555555555))
    sums = (sums & np.uint64(0x3333333333333333)) + ((sums >> np.uint64(2)) & np.uint64(0x3333333333333333))
    sums = (sums + (sums >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    sums *= np.uint64(0x0101010101010101)
    tops = np.uint64(0x8080808080808080)
    reached = ((np.uint64(rank) * np.uint64(0x0101010101010101) | tops) - sums) & tops
    byte = np.uint64(8 * popcount(reached))
    before = ((sums << np.uint64(8)) >> byte) & np.uint64(255)
    return np.int64(byte) + np.int64(_SELECT[(mask >> byte) & np.uint64(255), np.uint64(rank) - before])


@jit
def count_classes(old: Any, start: int, stop: int, shift: int, field: int, edges: Any, counts: Any) -> None:
    """Add the elements of [start, stop) to counts[class]; int64[8]."""
    masks, every = np.empty(LANES, np.uint64), ~np.uint64(0)
    at = start
    while at + GROUP <= stop:
        count_group(old, at, shift, field, edges, every, masks, counts)
        at += GROUP
    if at < stop:
        tail = np.zeros(GROUP, old.dtype)
        tail[: stop - at] = old[at:stop]
        valid = (np.uint64(1) << np.uint64(stop - at)) - np.uint64(1)
        count_group(tail, 0, shift, field, edges, valid, masks, counts)


@jit
def rank_changes(
    old: Any,
    start: int,
    stop: int,
    shift: int,
    field: int,
    edges: Any,
    table: Any,
    positions: Any,
    first: int,
    last: int,
    counts: Any,
    classes: Any,
    ranks: Any,
) -> None:
    """Class and rank of each changed element positions[first:last] of [start, stop); counts as `count_classes`.

    for each group of 64: count it
        for each change at bit j: ranks = counts - number of its class from bit j on
    """
    masks, every = np.empty(LANES, np.uint64), ~np.uint64(0)
    tail = np.zeros(GROUP, old.dtype)
    i = first
    for at in range(start, stop, GROUP):
        if at + GROUP <= stop:
            count_group(old, at, shift, field, edges, every, masks, counts)
        else:
            tail[: stop - at] = old[at:stop]
            valid = (np.uint64(1) << np.uint64(stop - at)) - np.uint64(1)
            count_group(tail, 0, shift, field, edges, valid, masks, counts)
        while i < last and positions[i] < at + GROUP:
            j = np.uint64(positions[i] - at)
            c = table[(old[positions[i]] >> shift) & field]
            classes[i - first] = c
            ranks[i - first] = counts[c] - popcount(masks[c] >> j)
            i += 1


@jit
def place_ranks(
    old: Any,
    shift: int,
    field: int,
    edges: Any,
    ranks: Any,
    begins: Any,
    steps: Any,
    positions: Any,
    out_steps: Any,
) -> int:
    """Turn ranks back to positions; return how many changes were found.

    Class c has the ranks ranks[begins[c]:begins[c + 1]] (and steps there); output is in order of position.

    for each group of 64: count it
        for each class whose next rank is below its count: find the element, remember it
        emit the remembered elements in order
    """
    masks, every = np.empty(LANES, np.uint64), ~np.uint64(0)
    tail = np.zeros(GROUP, old.dtype)
    counts = np.zeros(LANES, np.int64)
    upcoming = np.full(LANES, 1 << 62, np.int64)
    cursor = np.zeros(LANES, np.int64)
    source = np.empty(GROUP, np.int64)
    for c in range(LANES):
        cursor[c] = begins[c]
        if begins[c] < begins[c + 1]:
            upcoming[c] = ranks[begins[c]]
    out, stop = 0, old.size
    for at in range(0, stop, GROUP):
        if at + GROUP <= stop:
            count_group(old, at, shift, field, edges, every, masks, counts)
        else:
            tail[: stop - at] = old[at:stop]
            valid = (np.uint64(1) << np.uint64(stop - at)) - np.uint64(1)
            count_group(tail, 0, shift, field, edges, valid, masks, counts)
        hit = lanes_below(upcoming, counts)
        changed = np.uint64(0)
        while hit != np.uint64(0):
            c = trailing_zeros(hit)
            hit &= hit - np.uint64(1)
            i, end, mask, goal = cursor[c], begins[c + 1], masks[c], upcoming[c]
            rank = counts[c] - popcount(mask)  # of the lowest set bit of mask
            while goal < counts[c]:
                j = select_bit(mask, goal - rank)
                source[j] = i
                changed |= np.uint64(1) << np.uint64(j)
                i += 1
                goal = ranks[i] if i < end else 1 << 62
            cursor[c] = i
            set_lane(upcoming, c, goal)
        while changed != np.uint64(0):
            j = trailing_zeros(changed)
            changed &= changed - np.uint64(1)
            positions[out] = at + j
            out_steps[out] = steps[source[j]]
            out += 1
    return out
