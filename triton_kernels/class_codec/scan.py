"""Ranks inside classes on the host: from changed elements to ranks, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding

from ..jit import jit
from ..packed import RUN
from ..prefetch import prefetch
from ..words import popcount, trailing_zeros
from .lanes import GROUP, LANES, PLANES, TILE, code_of, deposit, group_of, put_class, put_planes, put_sums

SPAN = TILE * GROUP
"""Elements of a tile."""
AHEAD = 2 * SPAN
"""Elements asked for before they are classed: the processor's own prefetch stops at pages, and while a tile is counted.
Classing 12M bf16 elements took 1.4 times the read without, 0.9 with two tiles, 1.1 with one."""
LINE = 64
"""Bytes of a cache line, or less."""
DEPOSITS = bool(binding.get_host_cpu_features().get("bmi2")) and binding.get_host_cpu_name() not in ("znver1", "znver2")
"""Whether the processor deposits bits at those of a mask, and not by a loop in its microcode."""
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
def select_by_deposit(mask: Any, rank: int) -> Any:
    """`select_by_table`, by the processor."""
    return trailing_zeros(deposit(np.uint64(1) << np.uint64(rank), mask))


@jit
def select_by_table(mask: Any, rank: int) -> Any:
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


select_bit = select_by_deposit if DEPOSITS else select_by_table


@jit
def put_tile(old: Any, start: int, stop: int, shift: int, field: int, edges: Any, planes: Any, at: int) -> None:
    """`put_planes` of the elements [start, stop), at most a tile, from planes[at] on; what is missing is in class 0."""
    groups, line, last = (stop - start) // GROUP, LINE // old.itemsize, old.size - 1
    for g in range(groups):
        first = start + GROUP * g
        for k in range(0, GROUP, line):
            prefetch(old, min(first + AHEAD + k, last))
        put_planes(old, first, shift, field, edges, planes, at + g)
    if groups < TILE:
        first = start + GROUP * groups
        tail = np.zeros(GROUP, old.dtype)
        tail[: stop - first] = old[first:stop]
        put_planes(tail, 0, shift, field, edges, planes, at + groups)
        for b in range(PLANES):
            planes[at + TILE * b + groups + 1 : at + TILE * (b + 1)] = 0


@jit
def count_tile(planes: Any, at: int, elements: int, counts: Any) -> None:
    """counts[c] = elements of class c among the first `elements` of a tile, from its planes at `at`; int64[8]."""
    a, b, d = planes[at : at + TILE], planes[at + TILE : at + 2 * TILE], planes[at + 2 * TILE : at + 3 * TILE]
    n_a = n_b = n_d = n_ab = n_ad = n_bd = n_abd = 0
    for g in range(TILE):
        n_a += popcount(a[g])
        n_b += popcount(b[g])
        n_d += popcount(d[g])
        n_ab += popcount(a[g] & b[g])
        n_ad += popcount(a[g] & d[g])
        n_bd += popcount(b[g] & d[g])
        n_abd += popcount(a[g] & b[g] & d[g])
    counts[1] = n_a - n_ab - n_ad + n_abd  # of code 0b001
    counts[2] = n_ab - n_abd
    counts[3] = n_b - n_ab - n_bd + n_abd
    counts[4] = n_bd - n_abd
    counts[5] = n_abd
    counts[6] = n_ad - n_abd
    counts[7] = n_d - n_ad - n_bd + n_abd
    counts[0] = elements
    for c in range(1, LANES):
        counts[0] -= counts[c]


@jit
def list_classes(
    old: Any, start: int, stop: int, shift: int, field: int, edges: Any, planes: Any, tallies: Any, counts: Any
) -> None:
    """Class the elements [start, stop), tile by tile: the one pass over old values that a decoder makes.

    planes[192 * t:] = `put_tile` of tile t; tallies[t] = `count_tile`, int64[tiles, 8]; counts = sum of the tallies
    """
    counts[:] = 0
    for first in range(start, stop, SPAN):
        t, last = (first - start) // SPAN, min(first + SPAN, stop)
        put_tile(old, first, last, shift, field, edges, planes, PLANES * TILE * t)
        count_tile(planes, PLANES * TILE * t, last - first, tallies[t])
        for c in range(LANES):
            counts[c] += tallies[t, c]


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

    for each tile:
        for each change, at bit j of group g, of class c:
            rank = elements of c before the tile + those up to group g - those from bit j of g on
        count it
    """
    planes, tally = np.empty(PLANES * TILE, np.uint64), np.empty(LANES, np.int64)
    alone, sums = np.empty(LANES * TILE, np.uint64), np.empty(LANES * TILE, np.int16)
    counts[:] = 0
    i = first
    for begin in range(start, stop, SPAN):
        end = min(begin + SPAN, stop)
        put_tile(old, begin, end, shift, field, edges, planes, 0)
        if i < last and positions[i] < end:
            for c in range(LANES):
                put_class(planes, 0, code_of(c), alone, TILE * c)
                put_sums(alone, TILE * c, sums, TILE * c)
        while i < last and positions[i] < end:
            place = positions[i] - begin
            own = np.int64(table[(old[positions[i]] >> shift) & field])
            at = np.uint64(TILE * own + place // GROUP)
            classes[i - first] = own
            ranks[i - first] = counts[own] + sums[at] - popcount(alone[at] >> np.uint64(place % GROUP))
            i += 1
        count_tile(planes, 0, end - begin, tally)
        for c in range(LANES):
            counts[c] += tally[c]


@jit
def place_ranks(
    planes: Any,
    tallies: Any,
    ranks: Any,
    begins: Any,
    steps: Any,
    first: int,
    stop: int,
    starts: Any,
    offsets: Any,
    payload: Any,
) -> int:
    """Turn ranks back to positions: offsets and payload [first, stop) in order, and the first of each run in `starts`.

    Class c has the ranks ranks[begins[c]:begins[c + 1]] (and steps there). `planes` and `tallies` are those of
    `list_classes`, so nothing of the old values is read again. Returns how many changes were found.

    for each tile:
        for each class with a rank in it, for each such rank: its group, then its bit there; set that of `changed`
        for each of these changes: as many bits of `changed` as are set below its own go before it
    """
    each = RUN // SPAN  # tiles a run
    changed, places, sources = np.zeros(TILE, np.uint64), np.empty(SPAN, np.uint16), np.empty(SPAN, np.int32)
    alone, sums = np.empty(TILE, np.uint64), np.zeros(TILE + 1, np.int16)
    cursor, before = begins[:LANES].copy(), np.zeros(LANES, np.int64)
    out, one = first, np.uint64(1)
    for t in range(tallies.shape[0]):
        if t % each == 0:
            starts[t // each] = out
        count = 0
        for c in range(LANES):
            i, end, low = cursor[c], begins[c + 1], before[c]
            high = low + tallies[t, c]
            before[c] = high
            if i == end or ranks[i] >= high:
                continue
            put_class(planes, PLANES * TILE * t, code_of(c), alone, 0)
            put_sums(alone, 0, sums, 1)
            while i < end and ranks[np.uint64(i)] < high:
                rank = ranks[np.uint64(i)] - low
                group = group_of(sums, 1, rank)
                j = np.uint64(select_bit(alone[group], rank - sums[group]))
                changed[group] |= one << j
                places[np.uint64(count)] = group * np.uint64(GROUP) + j
                sources[np.uint64(count)] = i
                count += 1
                i += 1
            cursor[c] = i
        if count == 0:
            continue
        if count > stop - out:
            return -1
        put_sums(changed, 0, sums, 1)
        base = SPAN * (t % each)
        for k in range(count):
            place = np.uint64(places[k])
            group = place // np.uint64(GROUP)
            below = changed[group] & ((one << (place % np.uint64(GROUP))) - one)
            to = np.uint64(out + sums[group] + popcount(below))
            offsets[to] = base + place
            payload[to] = steps[np.uint64(sources[k])]
        out += count
        changed[:] = 0
    starts[(tallies.shape[0] + each - 1) // each :] = out
    return out - first
