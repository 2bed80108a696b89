"""Compiled encoder of blocks; `reference` specifies what it writes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..jit import jit
from ..packed_cpu import monotone
from ..words import bit_length
from .lanes import LANES
from .planes import list_gaps, list_string_gaps, low_width, put_bits, put_varint, varint_size
from .scan import class_table, pack_edges, rank_changes

NO_CHANGE = -1


class Changes(NamedTuple):
    """The changes of a block in order of class, then rank; memory for the largest block."""

    begins: Any
    """int64[9], class c has begins[c]:begins[c + 1]."""
    sizes: Any
    """int64[8], elements of each class."""
    sums: Any
    """int64[8], sum of the lengths of each class."""
    residual: Any
    """int64[8], residual bits of each class."""
    ranks: Any
    """int64[changes]."""
    values: Any
    """uint32[changes], new elements."""
    magnitudes: Any
    """uint32[changes], distance from the old value, less one."""
    lengths: Any
    """uint8[changes], bits of the magnitude shifted right by its class's order."""
    negative: Any
    """bool[changes]."""


class Vectors(NamedTuple):
    """Bit vectors of a block as gaps: of ranks for the 8 classes, then of lengths for them."""

    ends: Any
    """int64[17], vector v has gaps[ends[v]:ends[v + 1]]."""
    widths: Any
    """int64[16], low bits of its gaps."""
    gaps: Any
    """int64[2 * changes]."""


@jit
def room(n: int, changes: int, width: int) -> int:
    """Bytes that a block of `n` elements never exceeds: a copy of it, or the absolute mode.

    Quotients and low bits of gaps together are below 24 bits on average, and a header is below 64 bytes.
    """
    return min(n * width, changes * (width + 3) + 64)


@jit
def order_changes(
    old: Any,
    base: int,
    n: int,
    positions: Any,
    values: Any,
    first: int,
    count: int,
    packed_edges: Any,
    table: Any,
    orders: Any,
    shift: int,
    field: int,
    class_of: Any,
    rank_of: Any,
    before: Any,
    changes: Changes,
) -> int:
    """Fill `changes` from the elements and changes of a block.

    class_of, rank_of and before are memory for `count` changes. Returns 0, or NO_CHANGE for a value that is the
    old one.
    """
    word, begins = 8 * old.itemsize, changes.begins
    changes.sizes[:] = 0
    class_of[:count] = 0
    if orders.size == 1:
        changes.sizes[0] = n
        for i in range(count):
            rank_of[i] = positions[first + i] - base
    else:
        rank_changes(
            old,
            base,
            base + n,
            shift,
            field,
            packed_edges,
            table,
            positions,
            first,
            first + count,
            changes.sizes,
            class_of,
            rank_of,
        )
    begins[:] = 0
    for i in range(count):
        begins[class_of[i] + 1] += 1
    for c in range(LANES):
        begins[c + 1] += begins[c]
    upcoming = begins[:LANES].copy()
    # Arrays out of the tuple before the loop: inside it, each use would count references.
    sums, residual, ranks, new, magnitudes, lengths, negative = changes[2:]
    sums[:] = 0
    residual[:] = 0
    for i in range(count):  # by itself, so that many cache misses are under way at a time
        before[i] = old[positions[first + i]]
    for i in range(count):
        c = class_of[i]
        value = values[first + i]
        step = monotone(np.int64(value), word) - monotone(np.int64(before[i]), word)
        if step == 0:
            return NO_CHANGE
        magnitude = abs(step) - 1
        length = bit_length(magnitude >> orders[c])
        to = upcoming[c]
        upcoming[c] = to + 1
        ranks[to] = rank_of[i]
        new[to] = value
        magnitudes[to] = magnitude
        lengths[to] = length
        negative[to] = step < 0
        sums[c] += length
        residual[c] += orders[c] + max(length - 1, 0)
    return 0


@jit
def list_vectors(changes: Changes, vectors: Vectors) -> Any:
    """Fill `vectors`; returns bits of (rank quotients, magnitude quotients, rank low bits, magnitude low bits)."""
    bits = np.zeros(4, np.int64)
    vectors.ends[0] = 0
    for v in range(2 * LANES):
        c, kind = v % LANES, v // LANES
        first, count = changes.begins[c], changes.begins[c + 1] - changes.begins[c]
        start = vectors.ends[v]
        stop = start
        if count > 0 and kind == 0:
            stop = list_gaps(changes.ranks, first, count, changes.sizes[c], vectors.gaps, start)
            vectors.widths[v] = low_width(changes.sizes[c], stop - start)
        elif count > 0:
            stop = list_string_gaps(changes.lengths, first, count, changes.sums[c], vectors.gaps, start)
            vectors.widths[v] = low_width(count + changes.sums[c], stop - start)
        vectors.ends[v + 1] = stop
        unary = stop - start
        for i in range(start, stop):
            unary += vectors.gaps[i] >> vectors.widths[v]
        bits[kind] += unary
        bits[2 + kind] += (stop - start) * vectors.widths[v]
    return bits


@jit
def choose_mode(changes: Changes, bits: Any, orders: Any, word: int) -> tuple[int, bool, int]:
    """Size in bytes of the smaller of the two coded modes, whether it is the absolute one, and its unary bytes."""
    count = changes.begins[orders.size]
    header, header_sums, magnitude_bits = 1, 0, count
    for c in range(orders.size):
        changed = changes.begins[c + 1] - changes.begins[c]
        if changed > 0:
            header += varint_size(changed)
            header_sums += varint_size(changes.sums[c])
            magnitude_bits += changes.residual[c]
    unary_step, unary_value = (bits[0] + bits[1] + 7) // 8, (bits[0] + 7) // 8
    by_step = header + header_sums + varint_size(2 * unary_step)
    by_step += unary_step + (bits[2] + bits[3] + magnitude_bits + 7) // 8
    by_value = header + varint_size(2 * unary_value)
    by_value += unary_value + (bits[2] + count * word + 7) // 8
    if by_value < by_step:
        return by_value, True, unary_value
    return by_step, False, unary_step


@jit
def write_copy(
    old: Any, base: int, n: int, positions: Any, values: Any, first: int, last: int, out: Any, at: int
) -> None:
    """Write every new element of a block."""
    i = first
    for j in range(base, base + n):
        bits = np.int64(old[j])
        if i < last and positions[i] == j:
            bits = np.int64(values[i])
            i += 1
        for byte in range(old.itemsize):
            out[at] = (bits >> (8 * byte)) & 255
            at += 1


@jit
def write_coded(
    changes: Changes,
    vectors: Vectors,
    orders: Any,
    word: int,
    absolute: bool,
    unary_bytes: int,
    size: int,
    words: Any,
    out: Any,
    at: int,
) -> None:
    """Write a coded block of `size` bytes at out[at]; `words` is memory for its planes."""
    stop, begins = at + size, changes.begins
    active = 0
    for c in range(orders.size):
        active |= (begins[c + 1] > begins[c]) << c
    out[at] = active
    at = put_varint(out, at + 1, 2 * unary_bytes + absolute)
    for c in range(orders.size):
        if begins[c + 1] > begins[c]:
            at = put_varint(out, at, begins[c + 1] - begins[c])
            if not absolute:
                at = put_varint(out, at, changes.sums[c])
    words[: (stop - at) // 8 + 2] = 0
    unary_at, low_at = 0, 8 * unary_bytes
    for v in range(LANES if absolute else 2 * LANES):
        width = vectors.widths[v]
        for i in range(vectors.ends[v], vectors.ends[v + 1]):
            unary_at += vectors.gaps[i] >> width
            words[unary_at >> 6] |= np.uint64(1) << np.uint64(unary_at & 63)
            unary_at += 1
            put_bits(words, low_at, vectors.gaps[i], width)
            low_at += width
    if absolute:
        for i in range(begins[LANES]):
            put_bits(words, low_at, np.int64(changes.values[i]), word)
            low_at += word
    else:
        for i in range(begins[LANES]):
            words[low_at >> 6] |= np.uint64(changes.negative[i]) << np.uint64(low_at & 63)
            low_at += 1
        for c in range(orders.size):
            if changes.residual[c] > 0:
                for i in range(begins[c], begins[c + 1]):
                    width = orders[c] + max(np.int64(changes.lengths[i]) - 1, 0)
                    put_bits(words, low_at, np.int64(changes.magnitudes[i]), width)
                    low_at += width
    out[at:stop] = words.view(np.uint8)[: stop - at]


@jit
def encode_blocks(
    old: Any,
    positions: Any,
    values: Any,
    starts: Any,
    index: Any,
    begin: int,
    end: int,
    edges: Any,
    orders: Any,
    shift: int,
    field: int,
    block: int,
    out: Any,
    sizes: Any,
) -> int:
    """Encode the non-empty blocks index[begin:end], one after another, to `out`.

    Block k has the changes starts[k]:starts[k + 1]; its size goes to sizes[k]. Returns 0 or NO_CHANGE.
    """
    word, most = 8 * old.itemsize, 0
    for k in range(begin, end):
        most = max(most, starts[k + 1] - starts[k])
    changes = Changes(
        np.empty(LANES + 1, np.int64),
        np.empty(LANES, np.int64),
        np.empty(LANES, np.int64),
        np.empty(LANES, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.uint32),
        np.empty(most, np.uint32),
        np.empty(most, np.uint8),
        np.empty(most, np.bool_),
    )
    vectors = Vectors(np.empty(2 * LANES + 1, np.int64), np.empty(2 * LANES, np.int64), np.empty(2 * most, np.int64))
    class_of, rank_of, before = np.empty(most, np.uint8), np.empty(most, np.int64), np.empty(most, np.uint32)
    words = np.empty(room(1 << 50, most, old.itemsize) // 8 + 2, np.uint64)
    packed, table = pack_edges(edges), class_table(edges)
    at = 0
    for k in range(begin, end):
        base = index[k] * block
        n = min(block, old.size - base)
        first, count = starts[k], starts[k + 1] - starts[k]
        change = (positions, values, first, count)
        error = order_changes(
            old, base, n, *change, packed, table, orders, shift, field, class_of, rank_of, before, changes
        )
        if error:
            return error
        size, absolute, unary_bytes = choose_mode(changes, list_vectors(changes, vectors), orders, word)
        if size >= n * old.itemsize:
            size = n * old.itemsize
            write_copy(old, base, n, positions, values, first, first + count, out, at)
        else:
            write_coded(changes, vectors, orders, word, absolute, unary_bytes, size, words, out, at)
        sizes[k] = size
        at += size
    return 0
