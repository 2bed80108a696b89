"""The kernels that turn the planes of blocks into ranks and steps. They trust nothing: every cursor is checked."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import triton.language as tl

from ..bits_gpu import load_bits, report, square, unsigned
from ..kernel import kernel, warps
from .planes_gpu import COPY, STEPS, TRAILING, TRUNCATED, TYPE, VALUES, VECTOR, WIDE, class_of, monotone, rank_in_class
from .vectors_gpu import class_of_change, vector_of

TILE, WARPS = 512, warps(256)  # gaps or changes of a block that a program holds at a time
LANES, LANE_WARPS = 128, warps(128)
CHANGES, CHANGE_WARPS = 256, warps(128)  # changes of a chunk that a program handles at a time


@kernel()
def finish(data: tl.tensor, at: tl.tensor, first: tl.tensor, stop: tl.tensor, error: tl.tensor) -> None:
    """Check that bit `at` ends the plane of bytes [first, stop): in its last byte, with zeros behind."""
    code = tl.where(at > 8 * stop, TRUNCATED, 0)
    code = tl.where((at <= 8 * stop) & ((at + 7) // 8 != stop), TRAILING, code)
    inside = (at & 7 != 0) & ((at >> 3) < stop)
    last = tl.load(data + (at >> 3), mask=inside, other=0).to(tl.int32)
    code = tl.where((code == 0) & ((last >> (at & 7).to(tl.int32)) != 0), TRAILING, code)
    if code > 0:
        tl.atomic_max(error, code)


@kernel("base")
def terminator_kernel(
    data: tl.tensor,
    planes: tl.tensor,
    before: tl.tensor,
    widths: tl.tensor,
    firsts: tl.tensor,
    lows: tl.tensor,
    ends: tl.tensor,
    low_sums: tl.tensor,
    error: tl.tensor,
    base: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """Find the ends of all gaps of one block, and add up their low bits.

    gaps = firsts[k][16]; t = 0; total = 0; out = 2 * (before[k] - base)
    for each bit b of the unary plane, if set:
        v = vector of gap t; w = widths[k][v]
        total += the w bits of the low plane from lows[k][v] + (t - firsts[k][v]) * w on
        ends[out + t] = b; low_sums[out + t] = total; t += 1                    # while t < gaps
    t must end at `gaps`, the last end in the last byte; low_sums of ends that are missing are 0.
    """
    k = tl.program_id(0).to(tl.int64)
    unary, low, stop = tl.load(planes + 3 * k), tl.load(planes + 3 * k + 1), tl.load(planes + 3 * k + 2)
    out = 2 * (tl.load(before + k) - base)
    row, low_row = firsts + 17 * k, lows + 17 * k
    gaps = tl.load(row + 16)
    bits = 8 * (low - unary)
    seen, total, last = tl.zeros([], tl.int64), tl.zeros([], tl.int64), tl.zeros([], tl.int64) - 1
    for start in range(0, bits, tile):
        b = start + tl.arange(0, tile)
        byte = tl.load(data + unary + (b >> 3), mask=b < bits, other=0).to(tl.int32)
        flag = (byte >> (b & 7).to(tl.int32)) & 1
        t = seen + tl.cumsum(flag, 0) - flag
        live = (flag != 0) & (t < gaps)
        v = vector_of(row, t)
        width = tl.load(widths + 16 * k + v, mask=live, other=0)
        first = tl.load(row + v, mask=live, other=0)
        at = 8 * low + tl.load(low_row + v, mask=live, other=0) + (t - first) * width
        number = load_bits(data, at, width, stop, live, 4)
        tl.store(ends + out + t, b.to(tl.int32), mask=live)
        tl.store(low_sums + out + t, total + tl.cumsum(number, 0), mask=live)
        total += tl.sum(number, 0)
        seen += tl.sum(flag, 0)
        last = tl.maximum(last, tl.max(tl.where(flag != 0, b, -1).to(tl.int64), 0))
    if seen < gaps:
        tl.atomic_max(error, TRUNCATED)
    if (seen > gaps) | ((last + 8) // 8 != low - unary):
        tl.atomic_max(error, TRAILING)


@kernel("base")
def place_kernel(
    before: tl.tensor,
    begins: tl.tensor,
    segments: tl.tensor,
    numbers: tl.tensor,
    widths: tl.tensor,
    firsts: tl.tensor,
    inverted: tl.tensor,
    ends: tl.tensor,
    low_sums: tl.tensor,
    places: tl.tensor,
    bitmap: tl.tensor,
    lengths: tl.tensor,
    error: tl.tensor,
    base: tl.tensor,
    block_size: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Places of the listed bits of one block's vectors, marked in its bitmap or turned to lengths.

    for each gap t, number j of its vector v, c = v % 8:
        before the vector: end_0 = ends[firsts[v] - 1] (-1 for the first), sum_0 = low_sums there (0)
        place = ((ends[t] - end_0 - (j + 1)) << w) + low_sums[t] - sum_0 + j    # the sum of gaps so far, plus j
        place must be below numbers[v]
        v < 8:              bitmap[k] bit segments[c] + place = 1; places[t] = place
        ones are listed:    lengths[begins[c] + j] = the gap; the last place must be the last bit
        zeros are listed:   lengths[begins[c] + place - j] += 1; place - j must be below the number of ones
    Gaps of a block do not depend on each other.
    """
    k = tl.program_id(0).to(tl.int64)
    change = tl.load(before + k) - base
    out = 2 * change
    row = firsts + 17 * k
    gaps = tl.load(row + 16)
    flip = tl.load(inverted + k)
    for start in range(0, gaps, tile):
        t = start + tl.arange(0, tile)
        live = t < gaps
        v = vector_of(row, t)
        c = v & 7
        first = tl.load(row + v, mask=live, other=0)
        width = tl.load(widths + 16 * k + v, mask=live, other=0)
        number = tl.load(numbers + 16 * k + v, mask=live, other=0)
        end = tl.load(ends + out + t, mask=live, other=0).to(tl.int64)
        total = tl.load(low_sums + out + t, mask=live, other=0)
        end_0 = tl.load(ends + out + first - 1, mask=live & (first > 0), other=-1).to(tl.int64)
        total_0 = tl.load(low_sums + out + first - 1, mask=live & (first > 0), other=0)
        j = t - first
        place = ((end - end_0 - (j + 1)) << width) + total - total_0 + j
        good = live & (place >= 0) & (place < number)
        code = tl.where(live & (place >= number), VECTOR, 0)

        of_rank = v < 8
        bit = tl.load(segments + 9 * k + c, mask=good, other=0) + place
        word = bitmap + k * (block_size // 32) + (bit >> 5)
        tl.atomic_or(word, (t * 0 + 1).to(tl.int32) << (bit & 31).to(tl.int32), mask=good & of_rank, sem="relaxed")
        tl.store(places + out + t, tl.minimum(place, number).to(tl.int32), mask=live & of_rank)

        begin = tl.load(begins + 9 * k + c, mask=live, other=0)
        ones = tl.load(begins + 9 * k + c + 1, mask=live, other=0) - begin
        zeros = ((flip >> v.to(tl.int32)) & 1) != 0
        previous = tl.load(ends + out + t - 1, mask=live & (t > 0), other=-1).to(tl.int64)
        previous_total = tl.load(low_sums + out + t - 1, mask=live & (t > 0), other=0)
        gap = ((end - previous - 1) << width) + total - previous_total
        listed = good & (v >= 8) & (zeros == 0)
        tl.store(lengths + change + begin + j, tl.minimum(gap, 64).to(tl.int32), mask=listed & (j < ones))
        code = tl.where(listed & (j == ones - 1) & (place != number - 1), VECTOR, code)
        i = place - j
        listed = good & (v >= 8) & zeros
        inside = (i >= 0) & (i < ones)
        code = tl.where(listed & (i >= ones), VECTOR, code)
        tl.atomic_add(lengths + change + begin + i, (t * 0 + 1).to(tl.int32), mask=listed & inside, sem="relaxed")
        report(error, code)


@kernel("base", "blocks")
def chunk_kernel(
    before: tl.tensor,
    outs: tl.tensor,
    totals: tl.tensor,
    modes: tl.tensor,
    sizes: tl.tensor,
    bases: tl.tensor,
    begins: tl.tensor,
    firsts: tl.tensor,
    inverted: tl.tensor,
    places: tl.tensor,
    changes: tl.tensor,
    starts: tl.tensor,
    base: tl.tensor,
    blocks: tl.tensor,
    parts: tl.constexpr,
    chunk: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """How many changes lie before each chunk: one lane a chunk.

    for c in range(8):
        listed = places of class c below the rank bases[k][part][c], by bisection
        below = listed, or that rank - listed when zeros are listed
        changes[k][part][c] = before[k] + begins[k][c] + below; sum += below
    starts[k][part] = outs[k] + sum, for a copy outs[k] + part * chunk; starts[k][parts] = outs[k] + totals[k]
    """
    lane = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    live = lane < blocks * parts
    k, part = lane // parts, lane % parts
    change, out = tl.load(before + k, mask=live, other=0), tl.load(outs + k, mask=live, other=0)
    total = tl.load(totals + k, mask=live, other=0)
    flip = tl.load(inverted + k, mask=live, other=0)
    copy = tl.load(modes + k, mask=live, other=0) == COPY
    below_all = lane * 0
    for c in range(8):
        rank = tl.load(bases + 8 * lane + c, mask=live, other=0).to(tl.int64)
        gap = tl.load(firsts + 17 * k + c, mask=live, other=0)
        listed = tl.load(firsts + 17 * k + c + 1, mask=live, other=0) - gap
        row = places + 2 * (change - base) + gap
        low, high = lane * 0, listed
        for _ in range(19):
            middle = (low + high) >> 1
            open_ = low < high
            less = tl.load(row + middle, mask=live & open_, other=0).to(tl.int64) < rank
            low = tl.where(open_ & less, middle + 1, low)
            high = tl.where(open_ & (less == 0), middle, high)
        ones = tl.load(begins + 9 * k + c + 1, mask=live, other=0) - tl.load(begins + 9 * k + c, mask=live, other=0)
        below = tl.where(((flip >> c) & 1) != 0, rank - low, low)
        below = tl.where(copy, 0, tl.minimum(tl.maximum(below, 0), ones))
        begin = tl.load(begins + 9 * k + c, mask=live, other=0)
        tl.store(changes + 8 * lane + c, change + begin + below, mask=live)
        below_all += below
    below_all = tl.minimum(tl.where(copy, part * chunk, below_all), total)
    tl.store(starts + k * (parts + 1) + part, out + below_all, mask=live)
    tl.store(starts + k * (parts + 1) + parts, out + total, mask=live & (part == 0))


@kernel("base")
def step_kernel(
    data: tl.tensor,
    planes: tl.tensor,
    modes: tl.tensor,
    before: tl.tensor,
    begins: tl.tensor,
    lows: tl.tensor,
    orders: tl.tensor,
    lengths: tl.tensor,
    steps: tl.tensor,
    error: tl.tensor,
    base: tl.tensor,
    word: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Read one block's steps, or its new elements in mode VALUES, in order of class and rank.

    low = behind the gaps' low bits; count = begins[8]
    mode STEPS:  residual = low + count
        for i in range(count):
            width = orders[class of i] + max(lengths[i] - 1, 0); lengths[i] at most word - order
            magnitude = `width` bits from `residual` on, plus 1 << width when lengths[i] > 0; residual += width
            steps[i] = 1 + magnitude, negated when bit low + i is set
    mode VALUES: steps[i] = `word` bits from low + i * word on
    The low plane must end there.
    """
    k = tl.program_id(0).to(tl.int64)
    mode = tl.load(modes + k)
    if mode != COPY:
        plane, stop = tl.load(planes + 3 * k + 1), tl.load(planes + 3 * k + 2)
        to = tl.load(before + k)
        count = tl.load(begins + 9 * k + 8)
        low = 8 * plane + tl.load(lows + 17 * k + 16)
        end = low + count
        if mode == STEPS:
            for start in range(0, count, tile):
                i = start + tl.arange(0, tile)
                live = i < count
                c = class_of_change(begins + 9 * k, i)
                order = tl.load(orders + c, mask=live, other=0)
                length = tl.load(lengths + to - base + i, mask=live, other=0).to(tl.int64)
                wide = live & (length > word - order)
                length = tl.minimum(length, word - order)
                width = tl.where(live, order + tl.maximum(length - 1, 0), 0)
                behind = end + tl.cumsum(width, 0)
                magnitude = load_bits(data, behind - width, width, stop, live, 5)
                magnitude += (length > 0).to(tl.int64) << width
                down = load_bits(data, low + i, i * 0 + 1, stop, live, 1)
                step = tl.where(down != 0, -1 - magnitude, 1 + magnitude)
                tl.store(steps + to + i, step.to(steps.dtype.element_ty), mask=live)
                end += tl.sum(width, 0)
                report(error, tl.where(wide, WIDE, 0))
        else:
            end = low + count * word
            for start in range(0, count, tile):
                i = start + tl.arange(0, tile)
                live = i < count
                value = load_bits(data, low + i * word, i * 0 + word, stop, live, 5)
                tl.store(steps + to + i, value.to(steps.dtype.element_ty), mask=live)
        finish(data, end, plane, stop, error)


@kernel("shift", "field", "edges")
def apply_kernel(
    data: tl.tensor,
    index: tl.tensor,
    planes: tl.tensor,
    modes: tl.tensor,
    changes: tl.tensor,
    starts: tl.tensor,
    positions: tl.tensor,
    old: tl.tensor,
    steps: tl.tensor,
    values: tl.tensor,
    error: tl.tensor,
    shift: tl.tensor,
    field: tl.tensor,
    edges: tl.tensor,
    word: tl.constexpr,
    block_size: tl.constexpr,
    parts: tl.constexpr,
    tile: tl.constexpr,
    classes: tl.constexpr,
) -> None:
    """New elements of one chunk's changes.

    k, part = divmod(program, chunks a block); next = changes[program]
    for o in range(starts[k][part], starts[k][part + 1]):                       # old[o] is the one at positions[o]
        c = class of old[o]; step = steps[next[c]]; next[c] += 1
        values[o] = old[o] moved by step, which must stay in the type; step itself in mode VALUES;
                    the element of the copy in mode COPY
    """
    program = tl.program_id(0).to(tl.int64)
    k, part = program // parts, program % parts
    mode = tl.load(modes + k)
    begin, end = tl.load(starts + k * (parts + 1) + part), tl.load(starts + k * (parts + 1) + part + 1)
    copied = tl.load(planes + 3 * k) - tl.load(index + k) * block_size * (word // 8)
    even, odd = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    sign: tl.constexpr = 1 << (word - 1)
    for start in range(begin, end, tile):
        o = square(start, tile)
        live = o < end
        bits = tl.load(old + o, mask=live, other=0)
        if classes > 1:
            c = class_of(bits, shift, field, edges, classes)
            rank, even, odd = rank_in_class(c, live, even, odd)
            source = tl.load(changes + program * 8 + c, mask=live, other=0) + rank
        else:
            source = tl.load(changes + program * 8) + (o - begin)
        step = tl.load(steps + source, mask=live & (mode != COPY), other=0).to(tl.int64)
        number = monotone(unsigned(bits, word), word) + step
        wrong = live & (mode == STEPS) & ((number < -sign) | (number >= sign))
        value = tl.where(number >= 0, number, sign - 1 - number)
        value = tl.where(mode == VALUES, step, value)
        if mode == COPY:
            at = copied + tl.load(positions + o, mask=live, other=0) * (word // 8)
            value = at * 0
            for byte in tl.static_range(word // 8):
                value |= tl.load(data + at + byte, mask=live, other=0).to(tl.int64) << (8 * byte)
        tl.store(values + o, value.to(values.dtype.element_ty), mask=live)
        report(error, tl.max(tl.where(wrong, TYPE, 0), 1))
