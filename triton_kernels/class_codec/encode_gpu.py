"""The kernels that turn changes into the planes of blocks; `reference` specifies what they write."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import triton.language as tl

from ..bits_gpu import report, square, store_bits, unsigned
from ..kernel import kernel, warps
from .planes_gpu import COPY, STEPS, VALUES, bit_length, class_of, monotone, rank_in_class, store_varint, varint_size
from .vectors_gpu import class_of_change, vector_of

TILE, WARPS = 512, warps(256)  # gaps or changes of a block that a program holds at a time
LANES, LANE_WARPS = 128, warps(128)
CHANGES, CHANGE_WARPS = 256, warps(128)  # changes of a chunk that a program handles at a time


@kernel()
def mark_kernel(
    positions: tl.tensor,
    index: tl.tensor,
    starts: tl.tensor,
    changed: tl.tensor,
    block_size: tl.constexpr,
    chunk: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Set the bits of one chunk's changes: bit i of changed[k] for position index[k] * block_size + i."""
    program = tl.program_id(0).to(tl.int64)
    parts: tl.constexpr = block_size // chunk
    k, part = program // parts, program % parts
    base = tl.load(index + k) * block_size
    begin, end = tl.load(starts + k * (parts + 1) + part), tl.load(starts + k * (parts + 1) + part + 1)
    for start in range(begin, end, tile):
        i = start + tl.arange(0, tile)
        live = i < end
        place = (tl.load(positions + i, mask=live, other=0) - base).to(tl.int32)
        word = changed + k * (block_size // 32) + (place >> 5)
        tl.atomic_or(word, (place * 0 + 1) << (place & 31), mask=live, sem="relaxed")


@kernel("shift", "field", "edges")
def order_kernel(
    positions: tl.tensor,
    old: tl.tensor,
    values: tl.tensor,
    ranks: tl.tensor,
    index: tl.tensor,
    starts: tl.tensor,
    targets: tl.tensor,
    orders: tl.tensor,
    sorted_ranks: tl.tensor,
    sorted_values: tl.tensor,
    steps: tl.tensor,
    lengths: tl.tensor,
    residuals: tl.tensor,
    error: tl.tensor,
    shift: tl.tensor,
    field: tl.tensor,
    edges: tl.tensor,
    word: tl.constexpr,
    block_size: tl.constexpr,
    chunk: tl.constexpr,
    tile: tl.constexpr,
    classes: tl.constexpr,
) -> None:
    """Put one chunk's changes in order of class and rank, and measure them.

    next = targets[program]
    for i in range(starts[k][part], starts[k][part + 1]):                       # old[i] is the one at positions[i]
        c = class of old[i]; to = next[c]; next[c] += 1
        sorted_ranks[to] = ranks[i], with one class the place in the block; sorted_values[to] = values[i]
        steps[to] = monotone(values[i]) - monotone(old[i]), which must not be 0
        lengths[to] = bits of (|step| - 1) >> orders[c]; residuals[to] = orders[c] + max(length - 1, 0)
    """
    program = tl.program_id(0).to(tl.int64)
    parts: tl.constexpr = block_size // chunk
    k, part = program // parts, program % parts
    begin, end = tl.load(starts + k * (parts + 1) + part), tl.load(starts + k * (parts + 1) + part + 1)
    base = tl.load(index + k) * block_size
    even, odd = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    for start in range(begin, end, tile):
        i = square(start, tile)
        live = i < end
        bits = tl.load(old + i, mask=live, other=0)
        value = tl.load(values + i, mask=live, other=0)
        if classes > 1:
            c = class_of(bits, shift, field, edges, classes)
            local, even, odd = rank_in_class(c, live, even, odd)
            to = tl.load(targets + program * 8 + c, mask=live, other=0) + local
            rank = tl.load(ranks + i, mask=live, other=0)
        else:
            c = (i * 0).to(tl.int32)
            to = tl.load(targets + program * 8) + (i - begin)
            rank = (tl.load(positions + i, mask=live, other=0) - base).to(tl.int32)
        step = monotone(unsigned(value, word), word) - monotone(unsigned(bits, word), word)
        order = tl.load(orders + c, mask=live, other=0)
        magnitude = tl.maximum(tl.maximum(step, -step) - 1, 0)
        length = bit_length(magnitude >> order)
        tl.store(sorted_ranks + to, rank, mask=live)
        tl.store(sorted_values + to, value, mask=live)
        tl.store(steps + to, step.to(steps.dtype.element_ty), mask=live)
        tl.store(lengths + to, length.to(tl.int32), mask=live)
        tl.store(residuals + to, (order + tl.maximum(length - 1, 0)).to(tl.int32), mask=live)
        report(error, tl.max((live & (step == 0)).to(tl.int32), 1))


@kernel("blocks")
def sum_kernel(
    before: tl.tensor,
    counts: tl.tensor,
    length_sums: tl.tensor,
    sums: tl.tensor,
    blocks: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """Sums of the lengths of each class, from running sums over all changes: one lane a block.

    at = before[k]
    for c in range(8): sums[k][c] = length_sums[at + counts[k][c] - 1] - length_sums[at - 1]; at += counts[k][c]
    """
    k = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    live = k < blocks
    at = tl.load(before + k, mask=live, other=0)
    below = tl.load(length_sums + at - 1, mask=live & (at > 0), other=0)
    for c in range(8):
        at += tl.load(counts + 8 * k + c, mask=live, other=0)
        upto = tl.load(length_sums + at - 1, mask=live & (at > 0), other=0)
        tl.store(sums + 8 * k + c, upto - below, mask=live)
        below = upto


@kernel()
def gap_kernel(
    before: tl.tensor,
    begins: tl.tensor,
    firsts: tl.tensor,
    inverted: tl.tensor,
    sorted_ranks: tl.tensor,
    lengths: tl.tensor,
    length_sums: tl.tensor,
    gaps: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """List the gaps of one block's vectors: of ranks in one row of programs, of lengths in the other.

    for each class c, for each of its ones i (a change), of vector c at its rank and of vector 8 + c at
    i + the lengths up to its own:
        ones are listed:   gaps[firsts[v] + i] = place - the place before - 1
        zeros are listed:  gaps[firsts[v] + place - i] += 1, unless no zero follows     # one i is before zero place - i
    """
    k, of_lengths = tl.program_id(0).to(tl.int64), tl.program_id(1) != 0
    change = tl.load(before + k)
    row, begin_row = firsts + 17 * k, begins + 9 * k
    count = tl.load(begin_row + 8)
    flip = tl.load(inverted + k)
    for start in range(0, count, tile):
        at = start + tl.arange(0, tile)
        live = at < count
        c = class_of_change(begin_row, at)
        begin = tl.load(begin_row + c, mask=live, other=0)
        i = at - begin
        v = c + tl.where(of_lengths, 8, 0)
        if of_lengths:
            gap = tl.load(lengths + change + at, mask=live, other=0)
            zero = tl.load(length_sums + change + at, mask=live, other=0)
            zero -= tl.load(length_sums + change + begin - 1, mask=live & (change + begin > 0), other=0)
        else:
            rank = tl.load(sorted_ranks + change + at, mask=live, other=0)
            gap = rank - tl.load(sorted_ranks + change + at - 1, mask=live & (i > 0), other=-1) - 1
            zero = rank - i
        first = tl.load(row + v, mask=live, other=0)
        listed = tl.load(row + v + 1, mask=live, other=0) - first
        zeros = ((flip >> v.to(tl.int32)) & 1) != 0
        to = gaps + 2 * change + first
        tl.store(to + i, gap, mask=live & (zeros == 0))
        tl.atomic_add(to + zero, (zero * 0 + 1).to(tl.int32), mask=live & zeros & (zero < listed), sem="relaxed")


@kernel()
def unary_kernel(
    before: tl.tensor,
    firsts: tl.tensor,
    widths: tl.tensor,
    gaps: tl.tensor,
    ends: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """Where the gaps of one block end in its unary plane.

    at = 0
    for each gap t: at += (gaps[t] >> widths[vector of t]) + 1; ends[t] = at - 1
    """
    k = tl.program_id(0).to(tl.int64)
    out = 2 * tl.load(before + k)
    row = firsts + 17 * k
    count = tl.load(row + 16)
    at = tl.zeros([], tl.int64)
    for start in range(0, count, tile):
        t = start + tl.arange(0, tile)
        live = t < count
        width = tl.load(widths + 16 * k + vector_of(row, t), mask=live, other=0)
        gap = tl.load(gaps + out + t, mask=live, other=0).to(tl.int64)
        size = tl.where(live, (gap >> width) + 1, 0)
        tl.store(ends + out + t, (at + tl.cumsum(size, 0) - 1).to(tl.int32), mask=live)
        at += tl.sum(size, 0)


@kernel("n", "width", "word", "blocks")
def choose_kernel(
    index: tl.tensor,
    before: tl.tensor,
    counts: tl.tensor,
    sums: tl.tensor,
    firsts: tl.tensor,
    lows: tl.tensor,
    ends: tl.tensor,
    residual_sums: tl.tensor,
    modes: tl.tensor,
    sizes: tl.tensor,
    unary_bytes: tl.tensor,
    n: tl.tensor,
    width: tl.tensor,
    word: tl.tensor,
    blocks: tl.tensor,
    block_size: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """The smallest mode of each block and its size in bytes: one lane a block.

    by_step  = 1 + varints(2 * unary, and k_c, X_c of active classes) + unary + (low bits + signs + residuals) / 8
    by_value = 1 + varints(2 * unary, and k_c of active classes) + unary of ranks + (their low bits + values) / 8
    values when smaller than steps; a copy when that is not larger than either
    """
    k = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    live = k < blocks
    first, header, header_sums, count = tl.load(before + k, mask=live, other=0), k * 0 + 1, k * 0, k * 0
    for c in range(8):
        ones = tl.load(counts + 8 * k + c, mask=live, other=0)
        header += tl.where(ones > 0, varint_size(ones), 0)
        total = tl.load(sums + 8 * k + c, mask=live, other=0)
        header_sums += tl.where(ones > 0, varint_size(total), 0)
        count += ones
    residual = tl.load(residual_sums + first + count - 1, mask=live & (first + count > 0), other=0)
    residual -= tl.load(residual_sums + first - 1, mask=live & (first > 0), other=0)
    low_ranks, low_all = tl.load(lows + 17 * k + 8, mask=live, other=0), tl.load(lows + 17 * k + 16, mask=live, other=0)
    of_ranks, gaps = tl.load(firsts + 17 * k + 8, mask=live, other=0), tl.load(firsts + 17 * k + 16, mask=live, other=0)
    last = ends + 2 * first - 1
    unary_value = (tl.load(last + of_ranks, mask=live & (of_ranks > 0), other=-1).to(tl.int64) + 8) // 8
    unary_step = (tl.load(last + gaps, mask=live & (gaps > 0), other=-1).to(tl.int64) + 8) // 8
    by_step = header + header_sums + varint_size(2 * unary_step) + unary_step + (low_all + count + residual + 7) // 8
    by_value = header + varint_size(2 * unary_value) + unary_value + (low_ranks + count * word + 7) // 8
    mode = tl.where(by_value < by_step, VALUES, STEPS)
    size = tl.minimum(by_value, by_step)
    dense = tl.minimum(n - tl.load(index + k, mask=live, other=0) * block_size, block_size) * width
    mode = tl.where(size >= dense, COPY, mode)
    tl.store(modes + k, mode.to(tl.int32), mask=live)
    tl.store(sizes + k, tl.minimum(size, dense), mask=live)
    tl.store(unary_bytes + k, tl.where(mode == VALUES, unary_value, unary_step), mask=live)


@kernel("blocks")
def header_kernel(
    offsets: tl.tensor,
    modes: tl.tensor,
    counts: tl.tensor,
    sums: tl.tensor,
    unary_bytes: tl.tensor,
    planes: tl.tensor,
    words: tl.tensor,
    blocks: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """Write the headers of coded blocks, and where their planes start: one lane a block.

    at = offsets[k]
    write the byte of active classes, varint(2 * unary_bytes[k] + mode), for each active class varint(k_c) and, in mode
    STEPS, varint(X_c); planes[k] = at behind them, that + unary_bytes[k]
    """
    k = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    mode = tl.load(modes + k, mask=k < blocks, other=COPY)
    live = mode != COPY
    start = tl.load(offsets + k, mask=live, other=0)
    unary = tl.load(unary_bytes + k, mask=live, other=0)
    at = store_varint(words, start + 1, 2 * unary + mode, live)
    active = k * 0
    for c in range(8):
        ones = tl.load(counts + 8 * k + c, mask=live, other=0)
        here = live & (ones > 0)
        active |= here.to(tl.int64) << c
        at = store_varint(words, at, ones, here)
        here = here & (mode == STEPS)
        at = store_varint(words, at, tl.load(sums + 8 * k + c, mask=here, other=0), here)
    store_bits(words, 8 * start, active, active * 0 + 8, live)
    tl.store(planes + 2 * k, at, mask=live)
    tl.store(planes + 2 * k + 1, at + unary, mask=live)


@kernel()
def pack_gaps_kernel(
    before: tl.tensor,
    firsts: tl.tensor,
    lows: tl.tensor,
    widths: tl.tensor,
    modes: tl.tensor,
    planes: tl.tensor,
    gaps: tl.tensor,
    ends: tl.tensor,
    words: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """Write the gaps of one coded block to its planes, in mode VALUES those of ranks only.

    for each gap t of vector v: set bit ends[t] of the unary plane;
        its widths[v] low bits go to bit lows[v] + (t - firsts[v]) * widths[v] of the low plane
    """
    k = tl.program_id(0).to(tl.int64)
    mode = tl.load(modes + k)
    if mode != COPY:
        out = 2 * tl.load(before + k)
        row, low_row = firsts + 17 * k, lows + 17 * k
        unary, low = tl.load(planes + 2 * k), tl.load(planes + 2 * k + 1)
        count = tl.where(mode == VALUES, tl.load(row + 8), tl.load(row + 16))
        for start in range(0, count, tile):
            t = start + tl.arange(0, tile)
            live = t < count
            v = vector_of(row, t)
            width = tl.load(widths + 16 * k + v, mask=live, other=0)
            gap = tl.load(gaps + out + t, mask=live, other=0).to(tl.int64)
            end = tl.load(ends + out + t, mask=live, other=0).to(tl.int64)
            store_bits(words, 8 * unary + end, t * 0 + 1, t * 0 + 1, live)
            first = tl.load(row + v, mask=live, other=0)
            at = 8 * low + tl.load(low_row + v, mask=live, other=0) + (t - first) * width
            store_bits(words, at, gap & (((t * 0 + 1) << width) - 1), width, live)


@kernel()
def pack_changes_kernel(
    before: tl.tensor,
    begins: tl.tensor,
    lows: tl.tensor,
    modes: tl.tensor,
    planes: tl.tensor,
    sorted_values: tl.tensor,
    steps: tl.tensor,
    residuals: tl.tensor,
    residual_sums: tl.tensor,
    words: tl.tensor,
    word: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Write the changes of one coded block behind the low bits of its gaps.

    mode STEPS:  for each change i: sign bit; then for each change the residuals[i] low bits of |steps[i]| - 1
    mode VALUES: for each change its new element
    """
    k = tl.program_id(0).to(tl.int64)
    mode = tl.load(modes + k)
    if mode != COPY:
        first = tl.load(before + k)
        count = tl.load(begins + 9 * k + 8)
        low = 8 * tl.load(planes + 2 * k + 1)
        if mode == STEPS:
            low += tl.load(lows + 17 * k + 16)
            below = tl.load(residual_sums + first - 1, mask=first > 0, other=0)
            for start in range(0, count, tile):
                i = start + tl.arange(0, tile)
                live = i < count
                step = tl.load(steps + first + i, mask=live, other=0).to(tl.int64)
                width = tl.load(residuals + first + i, mask=live, other=0).to(tl.int64)
                upto = tl.load(residual_sums + first + i, mask=live, other=0) - below
                store_bits(words, low + i, (step < 0).to(tl.int64), i * 0 + 1, live)
                magnitude = tl.maximum(step, -step) - 1
                kept = magnitude & (((i * 0 + 1) << width) - 1)
                store_bits(words, low + count + upto - width, kept, width, live)
        else:
            low += tl.load(lows + 17 * k + 8)
            for start in range(0, count, tile):
                i = start + tl.arange(0, tile)
                live = i < count
                value = unsigned(tl.load(sorted_values + first + i, mask=live, other=0), word)
                store_bits(words, low + i * word, value, i * 0 + word, live)


@kernel("blocks")
def sizes_kernel(sizes: tl.tensor, ends: tl.tensor, words: tl.tensor, blocks: tl.tensor, tile: tl.constexpr) -> None:
    """Write the sizes of the stored blocks as varints that end at byte ends[k]: one lane a block."""
    k = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    live = k < blocks
    size = tl.load(sizes + k, mask=live, other=0)
    at = tl.load(ends + k, mask=live, other=0) - varint_size(size)
    store_varint(words, at, size, live)
