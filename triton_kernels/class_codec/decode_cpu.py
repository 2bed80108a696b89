"""Compiled decoder of blocks. It trusts nothing: every count and cursor is checked before it is used."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..jit import jit
from .directory_cpu import read_header
from .encode_cpu import monotone
from .lanes import LANES
from .planes import (
    COUNT,
    TRAILING,
    TRUNCATED,
    TYPE,
    VECTOR,
    WIDE,
    get_bits,
    get_places,
    low_width,
)
from .scan import count_classes, pack_edges, place_ranks


@jit
def finished(words: Any, at: int, size: int) -> int:
    """0 when bit `at` is the end of a plane of `size` bytes whose last bits are zeros, else an error."""
    if at > 8 * size:
        return TRUNCATED
    return TRAILING if (at + 7) // 8 != size or get_bits(words, at, 8 * size - at) else 0


@jit
def get_ranks(places: Any, listed: int, n: int, ones: int, ranks: Any) -> None:
    """Set bits of a bit vector from its listed places."""
    if 2 * ones <= n:
        ranks[:listed] = places[:listed]
        return
    i, skip = 0, 0
    for rank in range(n):
        if skip < listed and places[skip] == rank:
            skip += 1
        else:
            ranks[i] = rank
            i += 1


@jit
def get_lengths(places: Any, listed: int, count: int, total: int, most: int, lengths: Any) -> int:
    """Lengths from the listed places of their string (`list_string_gaps`); 0 or an error. `most` bits at most."""
    if count <= total:
        last = -1
        for i in range(count):
            length = places[i] - last - 1
            if length > most:
                return WIDE
            lengths[i] = length
            last = places[i]
        return 0 if last == count + total - 1 else VECTOR
    lengths[:count] = 0
    for j in range(listed):
        i = places[j] - j
        if i >= count:
            return VECTOR
        if lengths[i] >= most:
            return WIDE
        lengths[i] += 1
    return 0


@jit
def decode_block(
    data: Any,
    at: int,
    stop: int,
    sizes: Any,
    orders: Any,
    word: int,
    begins: Any,
    ranks: Any,
    steps: Any,
    places: Any,
    lengths: Any,
    unary: Any,
    low: Any,
) -> tuple[int, int]:
    """Read a coded block as ranks (int64) and steps or values (int64), class c at begins[c]:begins[c + 1].

    Args:
        sizes: int64[8], elements of each class.
        places, lengths, unary, low: memory to work in, for as many changes and bytes as the block has.

    Returns (error, absolute mode).
    """
    classes = orders.size
    counts, sums = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    error, absolute, unary_bytes, at = read_header(data, at, stop, classes, word, counts, sums)
    if error:
        return error, 0
    begins[0] = 0
    for c in range(LANES):
        if counts[c] > sizes[c]:
            return COUNT, 0
        begins[c + 1] = begins[c] + counts[c]
    count, low_bytes = begins[LANES], stop - at - unary_bytes
    unary[: unary_bytes // 8 + 1] = 0
    unary.view(np.uint8)[:unary_bytes] = data[at : at + unary_bytes]
    low[: low_bytes // 8 + 2] = 0
    low.view(np.uint8)[:low_bytes] = data[at + unary_bytes : stop]
    unary_at, low_at, unary_stop, low_stop = 0, 0, 8 * unary_bytes, 8 * low_bytes

    for v in range(LANES if absolute else 2 * LANES):
        c = v % LANES
        ones = counts[c]
        if ones == 0:
            continue
        n = sizes[c] if v < LANES else ones + sums[c]
        listed = min(ones, n - ones)
        needed = listed * low_width(n, listed)
        if low_at + needed > low_stop:
            return TRUNCATED, 0
        unary_at = get_places(unary, unary_at, unary_stop, low, low_at, n, listed, places)
        if unary_at < 0:
            return -unary_at, 0
        low_at += needed
        if v < LANES:
            get_ranks(places, listed, n, ones, ranks[begins[c] :])
        else:
            error = get_lengths(places, listed, ones, sums[c], word - orders[c], lengths[begins[c] :])
            if error:
                return error, 0
    error = finished(unary, unary_at, unary_bytes)
    if error:
        return error, 0

    if absolute:
        if low_at + count * word > low_stop:
            return TRUNCATED, 0
        for i in range(count):
            steps[i] = get_bits(low, low_at, word)
            low_at += word
        return finished(low, low_at, low_bytes), 1
    residual_at = low_at + count
    for c in range(classes):
        for i in range(begins[c], begins[c + 1]):
            length = np.int64(lengths[i])
            width = orders[c] + max(length - 1, 0)
            if residual_at + width > low_stop:
                return TRUNCATED, 0
            step = get_bits(low, residual_at, width) + 1
            if length > 0:
                step += 1 << width
            residual_at += width
            steps[i] = -step if get_bits(low, low_at, 1) else step
            low_at += 1
    return finished(low, residual_at, low_bytes), 0


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
    positions: Any,
    steps: Any,
    values: Any,
) -> int:
    """Decode the blocks begin to end of `scan_blocks`; returns 0 or an error.

    Writes positions, and either the step to the new value or step 0 and the new value itself. `old` is read only for
    more than one class.
    """
    width, classes = values.itemsize, orders.size
    most, longest = 0, 0
    for k in range(begin, end):
        longest = max(longest, offsets[k + 1] - offsets[k])
        most = max(most, before[k + 1] - before[k])
    packed = pack_edges(edges)
    begins, sizes = np.empty(LANES + 1, np.int64), np.empty(LANES, np.int64)
    ranks, places, lengths = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.uint8)
    found = np.empty(most, np.int64)
    unary, low = np.empty(longest // 8 + 2, np.uint64), np.empty(longest // 8 + 2, np.uint64)
    for k in range(begin, end):
        base, first, count = index[k] * block, before[k], before[k + 1] - before[k]
        room = min(block, n - base)
        if offsets[k + 1] - offsets[k] == room * width:
            at = offsets[k]
            for i in range(room):
                bits: Any = 0
                for byte in range(width):
                    bits |= np.int64(data[at + byte]) << (8 * byte)
                at += width
                positions[first + i] = base + i
                steps[first + i] = 0
                values[first + i] = bits
            continue
        sizes[:] = 0
        if classes == 1:
            sizes[0] = room
        else:
            count_classes(old, base, base + room, shift, field, packed, sizes)
        error, absolute = decode_block(
            data,
            offsets[k],
            offsets[k + 1],
            sizes,
            orders,
            8 * width,
            begins,
            ranks,
            found,
            places,
            lengths,
            unary,
            low,
        )
        if error:
            return error
        if classes == 1:
            for i in range(count):
                positions[first + i] = base + ranks[i]
                steps[first + i] = found[i]
        elif count != place_ranks(
            old, base, base + room, shift, field, packed, ranks, begins, found, positions, steps, first
        ):
            return TYPE
        if absolute:
            for i in range(first, first + count):
                values[i] = steps[i]
                steps[i] = 0
    return 0


@jit
def apply_steps(old: Any, steps: Any, values: Any, begin: int, end: int) -> int:
    """values = old moved by steps, where there is a step; returns 0 or an error."""
    word = 8 * values.itemsize
    sign = 1 << (word - 1)
    for i in range(begin, end):
        if steps[i] != 0:
            number = monotone(np.int64(old[i]), word) + steps[i]
            if number < -sign or number >= sign:
                return TYPE
            values[i] = number if number >= 0 else sign - 1 - number
    return 0
