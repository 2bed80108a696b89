"""Compiled decoder of blocks. It trusts nothing: every count and cursor is checked before it is used."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..bit_fields import GROUP, WIDEST, put_field_sums, put_steps
from ..bit_planes import SLACK, bits_at, count_ones, list_ones, word_at
from ..jit import jit
from ..packed import RUN
from ..prefetch import array_at
from .directory_cpu import read_header, scan_blocks
from .lanes import LANES, PLANES, TILE
from .planes import COUNT, TRAILING, TRUNCATED, TYPE, VECTOR, WIDE, low_width
from .scan import SPAN, list_classes, place_ranks


class Scratch(NamedTuple):
    """Memory to decode one block in, enough for the largest."""

    ends: Any
    """int32[2 * changes], the set bits of the unary plane: where each gap ends."""
    places: Any
    """int32[changes], what a bit vector lists."""
    lengths: Any
    """uint8[changes], bits of each magnitude above its code order."""
    ranks: Any
    """int32[changes], in order of class."""
    steps: Any
    """Payload [changes], in order of class."""


@jit
def make_scratch(changes: int, payload: Any) -> Scratch:
    """For blocks of at most so many changes."""
    return Scratch(
        np.empty(2 * changes + SLACK, np.int32),
        np.empty(changes, np.int32),
        np.empty(changes, np.uint8),
        np.empty(changes, np.int32),
        np.empty(changes, payload.dtype),
    )


@jit
def finished(data: Any, at: int, stop: int) -> int:
    """0 when bit `at` is the end of a plane that ends before byte `stop`, whose last bits are zeros; else an error."""
    if at > 8 * stop:
        return TRUNCATED
    return TRAILING if (at + 7) // 8 != stop or (at & 7 and data[at >> 3] >> (at & 7)) else 0


@jit
def get_places(ends: Any, begin: int, low: Any, low_at: int, width: int, n: int, places: Any) -> int:
    """Fill `places`, ascending and below n, from their gaps, the first of which begins at bit `begin`; 0 or an error.

    place = -1
    for each gap: place += 1 + (zeros before its end << width | next `width` bits of low)

    The sum of the quotients follows from where a gap ends, so only the low bits are added up.
    """
    done, total = 0, np.int32(0)
    if width <= WIDEST:
        done = places.size & ~(GROUP - 1)
        for i in range(0, done, GROUP):
            total = put_field_sums(bits_at(low, low_at), width, total, places, i)
            low_at += GROUP * width
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    for i in range(done, places.size):
        total += np.int32(bits_at(low, low_at) & mask)
        places[i] = total
        low_at += width
    for i in range(places.size):
        places[i] += ((ends[i] - begin - i) << width) + i
    if places.size == 0:
        return 0
    last = places.size - 1
    place = ((np.int64(ends[last]) - begin - last) << width) + total + last
    return VECTOR if place >= n else 0


@jit
def invert(places: Any, n: int, ranks: Any) -> None:
    """The numbers below n that are not in `places`."""
    i, skip = 0, 0
    for rank in range(n):
        if skip < places.size and places[skip] == rank:
            skip += 1
        else:
            ranks[i] = rank
            i += 1


@jit
def get_lengths(places: Any, total: int, most: int, lengths: Any) -> int:
    """Lengths from the listed places of their string (`list_string_gaps`); 0 or an error. `most` bits at most."""
    count, wide = lengths.size, 0
    if count <= total:
        last = -1
        for i in range(count):
            length = places[i] - last - 1
            wide |= length > most
            lengths[i] = length
            last = places[i]
        if last != count + total - 1:
            return VECTOR
    else:
        lengths[:] = 0
        if places.size and places[places.size - 1] - (places.size - 1) >= count:
            return VECTOR
        for j in range(places.size):
            i = places[j] - j
            lengths[i] += 1
            wide |= lengths[i] > most
    return WIDE if wide else 0


@jit
def residual_bits(lengths: Any, order: int) -> int:
    """Bits that the magnitudes have below their leading one."""
    bits: Any = 0
    for i in range(lengths.size):
        bits += max(int(lengths[i]) - 1, 0)
    return int(bits + order * lengths.size)


@jit
def get_steps_singly(
    lengths: Any, order: int, low: Any, sign_at: int, at: int, steps: Any, start: int, stop: int
) -> int:
    """`get_steps` of some; returns the bit behind them."""
    for i in range(start, stop):
        length = int(lengths[i])
        lead = min(length, 1)
        width = order + length - lead
        residual = bits_at(low, at) & ((np.uint64(1) << np.uint64(width)) - np.uint64(1))
        negative = np.int64(bits_at(low, sign_at + i)) & 1
        steps[i] = ((np.int64(residual) + (lead << width) + 1) ^ -negative) + negative
        at += width
    return at


@jit
def get_steps(lengths: Any, order: int, low: Any, sign_at: int, at: int, steps: Any) -> None:
    """Steps from their lengths, signs and residual bits, which are all there.

    width = order + max(length - 1, 0);  magnitude = next `width` bits of low, plus 1 << width if length > 0
    step = (magnitude + 1) * (-1 if sign else 1)
    """
    done = 0
    if order <= WIDEST:
        done = steps.size & ~(GROUP - 1)
        for i in range(0, done, GROUP):
            leads, signs = word_at(lengths, i), bits_at(low, sign_at + i)
            if leads & np.uint64(0xFEFEFEFEFEFEFEFE) == 0:  # no length above 1: all widths are the order
                put_steps(bits_at(low, at), order, leads, signs, steps, i)
                at += GROUP * order
            else:
                at = get_steps_singly(lengths, order, low, sign_at, at, steps, i, i + GROUP)
    get_steps_singly(lengths, order, low, sign_at, at, steps, done, steps.size)


@jit
def decode_block(
    data: Any, at: int, stop: int, sizes: Any, orders: Any, word: int, begins: Any, scratch: Scratch, steps: Any
) -> tuple[int, int]:
    """Read a coded block as scratch.ranks and steps (or values), class c at begins[c]:begins[c + 1].

    `sizes`: int64[8], elements of each class; `data`: with `SLACK` bytes behind `stop`. Returns (error, absolute mode).
    """
    classes = orders.size
    counts, sums = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    error, absolute, unary_bytes, at = read_header(data, at, stop, classes, word, counts, sums)
    if error:
        return error, 0
    begins[0] = 0
    total = 0
    for c in range(LANES):
        if counts[c] > sizes[c]:
            return COUNT, 0
        begins[c + 1] = begins[c] + counts[c]
        total += min(counts[c], sizes[c] - counts[c]) + (0 if absolute else min(counts[c], sums[c]))
    ends, count, low = scratch.ends, begins[LANES], at + unary_bytes
    ones = count_ones(data, at, low)
    if ones != total:
        return (TRUNCATED if ones < total else TRAILING), 0
    list_ones(data, at, low, ends)
    gap, unary_at, low_at, low_stop = 0, 0, 8 * low, 8 * stop

    for v in range(LANES if absolute else 2 * LANES):
        c = v % LANES
        ones = counts[c]
        if ones == 0:
            continue
        n = sizes[c] if v < LANES else ones + sums[c]
        listed = min(ones, n - ones)
        width = low_width(n, listed)
        if low_at + listed * width > low_stop:
            return TRUNCATED, 0
        ranks = scratch.ranks[begins[c] : begins[c + 1]]
        inverted = 2 * ones > n
        places = scratch.places[:listed] if inverted or v >= LANES else ranks
        error = get_places(ends[gap : gap + listed], unary_at, data, low_at, width, n, places)
        if error:
            return error, 0
        low_at += listed * width
        gap += listed
        unary_at = int(ends[gap - 1]) + 1 if gap else 0
        if v >= LANES:
            error = get_lengths(places, sums[c], word - orders[c], scratch.lengths[begins[c] : begins[c + 1]])
            if error:
                return error, 0
        elif inverted:
            invert(places, n, ranks)
    error = finished(data, 8 * at + unary_at, low)
    if error:
        return error, 0

    if absolute:
        if low_at + count * word > low_stop:
            return TRUNCATED, 0
        mask = (np.uint64(1) << np.uint64(word)) - np.uint64(1)
        for i in range(count):
            steps[i] = np.int64(bits_at(data, low_at) & mask)
            low_at += word
        return finished(data, low_at, stop), 1
    residual_at = low_at + count
    for c in range(classes):
        lengths = scratch.lengths[begins[c] : begins[c + 1]]
        needed = residual_bits(lengths, orders[c])
        if residual_at + needed > low_stop:
            return TRUNCATED, 0
        get_steps(lengths, orders[c], data, low_at + begins[c], residual_at, steps[begins[c] : begins[c + 1]])
        residual_at += needed
    return finished(data, residual_at, stop), 0


@jit
def pack_offsets(positions: Any, first: int, starts: Any, offsets: Any) -> None:
    """Cut the ascending `positions` of a block into runs: offsets in them, first change of each."""
    for i in range(positions.size):
        offsets[i] = positions[i] & (RUN - 1)
    for r in range(starts.size):
        starts[r] = first + np.searchsorted(positions, r * RUN)


@jit
def decode_blocks(
    data: Any,
    n: int,
    old: Any,
    index: Any,
    offsets: Any,
    before: Any,
    begin: int,
    end: int,
    edges: Any,
    orders: Any,
    shift: int,
    field: int,
    block: int,
    width: int,
    bases: Any,
    starts: Any,
    out: Any,
    payload: Any,
    moved: Any,
) -> int:
    """Decode the blocks begin to end of `scan_blocks`; returns 0 or an error. `edges` are packed.

    Writes `PackedChanges`: out holds the offsets, and every block has as many runs. `old` is read only for more than
    one class.
    """
    classes, runs = orders.size, (block + RUN - 1) // RUN
    most = 0
    for k in range(begin, end):
        most = max(most, before[k + 1] - before[k])
    begins, sizes = np.empty(LANES + 1, np.int64), np.empty(LANES, np.int64)
    scratch = make_scratch(most, payload)
    tiles = (min(block, n) + SPAN - 1) // SPAN if classes > 1 else 0
    planes, tallies = np.empty(PLANES * TILE * tiles, np.uint64), np.empty((tiles, LANES), np.int64)
    for k in range(begin, end):
        base, first, stop = index[k] * block, before[k], before[k + 1]
        count, room = stop - first, min(block, n - base)
        dense = offsets[k + 1] - offsets[k] == room * width
        mine = starts[k * runs : (k + 1) * runs]
        absolute = 1
        if dense:
            at = offsets[k]
            for i in range(room):
                bits: Any = 0
                for byte in range(width):
                    bits |= np.int64(data[at + byte]) << (8 * byte)
                at += width
                scratch.ranks[i] = i
                payload[first + i] = bits
        else:
            tally = tallies[: (room + SPAN - 1) // SPAN]
            sizes[:] = 0
            sizes[0] = room
            if classes > 1:
                list_classes(old, base, base + room, shift, field, edges, planes, tally, sizes)
            steps = payload[first:stop] if classes == 1 else scratch.steps
            error, absolute = decode_block(
                data, offsets[k], offsets[k + 1], sizes, orders, 8 * width, begins, scratch, steps
            )
            if error:
                return error
            if classes > 1 and count != place_ranks(
                planes, tally, scratch.ranks, begins, scratch.steps, first, stop, mine, out, payload
            ):
                return TYPE
        if classes == 1 or dense:
            pack_offsets(scratch.ranks[:count], first, mine, out[first:stop])
        for r in range(runs):
            bases[k * runs + r] = base + r * RUN
        moved[k * runs : (k + 1) * runs] = not absolute
    return 0


@jit
def scan_all(
    data: Any, sections: Any, maps: Any, width: int, block: int, index: Any, offsets: Any, before: Any, runs: Any
) -> int:
    """`scan_blocks` of the messages of several units; returns an error or 0.

    Args:
        sections: int64[k, 5], start and size of each message, elements of its unit, row of its map, address of its old
            values (one class: any).
        maps: int64[m, 4 + 8], number of classes, shift and mask of the exponent byte, packed edges, orders.
        index: int64[room], block numbers, message after message.
        offsets, before: int64[room + k], byte in `data` and changes before, with one more for the end of each message.
        runs: int64[k + 1], filled with the blocks before each message, and all.
    """
    k, seen = 0, 0
    for i in range(sections.shape[0]):
        start, size, numel = sections[i, 0], sections[i, 1], sections[i, 2]
        runs[i] = k
        error, found, at, changes = scan_blocks(
            data[start : start + size], numel, width, maps[sections[i, 3], 0], block
        )
        if error:
            return int(error)
        for j in range(found.size):
            index[k + j] = found[j]
        for j in range(found.size + 1):
            offsets[k + i + j] = start + at[j]
            before[k + i + j] = seen + changes[j]
        k += found.size
        seen += changes[found.size]
    runs[sections.shape[0]] = k
    return 0


@jit
def decode_all(
    data: Any,
    sections: Any,
    maps: Any,
    index: Any,
    offsets: Any,
    before: Any,
    runs: Any,
    begin: int,
    end: int,
    like: Any,
    block: int,
    bases: Any,
    starts: Any,
    out: Any,
    payload: Any,
    moved: Any,
) -> int:
    """`decode_blocks` begin to end of `scan_all`; `like` is an array of the type of the elements."""
    each = (block + RUN - 1) // RUN
    i = int(np.searchsorted(runs, begin, side="right")) - 1
    while i < sections.shape[0] and runs[i] < end:
        first, last = runs[i], runs[i + 1]
        parts = slice(first * each, last * each)
        known = maps[sections[i, 3]]
        error = decode_blocks(
            data,
            sections[i, 2],
            array_at(sections[i, 4], sections[i, 2], like),
            index[first:last],
            offsets[first + i : last + i + 1],
            before[first + i : last + i + 1],
            max(begin, first) - first,
            min(end, last) - first,
            np.uint64(known[3]),
            known[4 : 4 + known[0]],
            known[1],
            known[2],
            block,
            like.itemsize,
            bases[parts],
            starts[parts],
            out,
            payload,
            moved[parts],
        )
        if error:
            return error
        i += 1
    return 0
