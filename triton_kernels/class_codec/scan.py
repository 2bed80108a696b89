"""Ranks inside classes on the host: from changed elements to ranks, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..jit import jit
from ..words import popcount, trailing_zeros
from .lanes import GROUP, LANES, add_masks, put_masks, reached, set_lane

TILE = 32 * GROUP
"""Elements whose masks are stored before the first of them is loaded."""
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
def put_tile(old: Any, start: int, stop: int, shift: int, field: int, edges: Any, masks: Any, at: int) -> None:
    """`put_masks` of the elements [start, stop), from masks[at] on."""
    every = ~np.uint64(0)
    while start + GROUP <= stop:
        put_masks(old, start, shift, field, edges, every, masks, at)
        start += GROUP
        at += LANES
    if start < stop:
        tail = np.zeros(GROUP, old.dtype)
        tail[: stop - start] = old[start:stop]
        valid = (np.uint64(1) << np.uint64(stop - start)) - np.uint64(1)
        put_masks(tail, 0, shift, field, edges, valid, masks, at)


@jit
def one_class(masks: Any, at: int, c: Any) -> Any:
    """The mask of class c alone, from eight masks of `put_masks`."""
    higher = masks[np.uint64(at + c + 1)] if c + 1 < LANES else np.uint64(0)
    return masks[np.uint64(at + c)] ^ higher


@jit
def of_class(counts: Any, c: Any) -> int:
    """The count of class c alone, from counts of each class and those above."""
    return int(counts[c] - (counts[c + 1] if c + 1 < LANES else 0))


@jit
def list_classes(old: Any, start: int, stop: int, shift: int, field: int, edges: Any, masks: Any, counts: Any) -> None:
    """masks[8 * g:] = `put_masks` of the group g of [start, stop); counts[c] = its elements in class c; int64[8].

    The one pass over old values that a decoder makes.
    """
    at = 0
    counts[:] = 0
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        put_tile(old, first, last, shift, field, edges, masks, at)
        for _ in range(first, last, GROUP):
            add_masks(masks, at, counts)
            at += LANES
    for c in range(LANES):
        counts[c] = of_class(counts, c)


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
    """Class and rank of each changed element positions[first:last] of [start, stop); counts as `list_classes`.

    for each group of 64: count it
        for each change at bit j: ranks = counts - number of its class from bit j on
    """
    masks = np.empty(LANES * (TILE // GROUP), np.uint64)
    counts[:] = 0
    i = first
    for begin in range(start, stop, TILE):
        end = min(begin + TILE, stop)
        put_tile(old, begin, end, shift, field, edges, masks, 0)
        group = 0
        for at in range(begin, end, GROUP):
            add_masks(masks, group, counts)
            while i < last and positions[i] < at + GROUP:
                j = np.uint64(positions[i] - at)
                c: Any = np.int64(table[(old[positions[i]] >> shift) & field])
                classes[i - first] = c
                ranks[i - first] = of_class(counts, c) - popcount(one_class(masks, group, c) >> j)
                i += 1
            group += LANES
    for c in range(LANES):
        counts[c] = of_class(counts, c)


@jit
def place_ranks(masks: Any, groups: int, ranks: Any, begins: Any, steps: Any, positions: Any, out_steps: Any) -> int:
    """Turn ranks back to positions; return how many changes were found.

    Class c has the ranks ranks[begins[c]:begins[c + 1]] (and steps there); output is in order of position. `masks` are
    those of `list_classes`, so nothing of the old values is read again.

    for each group of 64: count it
        for each class whose next rank is below its count: find the element, remember it
        emit the remembered elements in order
    """
    counts = np.zeros(LANES, np.int64)
    upcoming = np.full(LANES, 1 << 62, np.int64)
    cursor = np.zeros(LANES, np.int64)
    source = np.empty(GROUP, np.int64)
    for c in range(LANES):
        cursor[c] = begins[c]
        if begins[c] < begins[c + 1]:
            upcoming[c] = ranks[begins[c]]
    out = 0
    for group in range(groups):
        at = LANES * group
        add_masks(masks, at, counts)
        hit = reached(upcoming, counts)
        changed = np.uint64(0)
        while hit != np.uint64(0):
            c = trailing_zeros(hit)
            hit &= hit - np.uint64(1)
            i, end, mask, goal = cursor[c], begins[c + 1], one_class(masks, at, c), upcoming[c]
            count = of_class(counts, c)
            rank = count - popcount(mask)  # of the lowest set bit of mask
            while goal < count:
                j = select_bit(mask, goal - rank)
                source[np.uint64(j)] = i
                changed |= np.uint64(1) << np.uint64(j)
                i += 1
                goal = np.int64(ranks[i]) if i < end else 1 << 62
            cursor[c] = i
            set_lane(upcoming, c, goal)
        while changed != np.uint64(0):
            j = trailing_zeros(changed)
            changed &= changed - np.uint64(1)
            positions[out] = GROUP * group + j
            out_steps[out] = steps[source[np.uint64(j)]]
            out += 1
    return out
