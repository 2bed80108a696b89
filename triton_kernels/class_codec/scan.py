"""Ranks inside classes on the host: 64 elements classed at a time, in vector registers.

An exponent byte is in class c or a higher one when it exceeds the edge of class c - 1. So seven comparisons of 64 bytes
give seven 64-bit masks, from which classes, their counts and the rank of any element are bit operations. LLVM turns the
comparisons into the machine's own compare and mask-move instructions (AVX2, AVX-512, NEON).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..jit import jit

GROUP = 64
LANES = 8

_U64, _I64, _U8 = ir.IntType(64), ir.IntType(64), ir.IntType(8)
_LANES = ir.VectorType(_U64, LANES)

_SELECT = np.array([([j for j in range(8) if byte >> j & 1] + [0] * 8)[:8] for byte in range(256)], np.uint8)
"""Place of the set bit of a byte with so many set bits below it."""


def _splat(builder: Any, scalar: Any, count: int) -> Any:
    vector = ir.VectorType(scalar.type, count)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), count), [0] * count)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


def _vector_at(context: Any, builder: Any, kind: Any, value: Any, index: Any, vector: Any) -> Any:
    array = context.make_array(kind)(context, builder, value)
    first = cgutils.get_item_pointer(context, builder, kind, array, [index], wraparound=False)
    return builder.bitcast(first, vector.as_pointer())


@intrinsic  # type: ignore[untyped-decorator]
def count_group(
    typingctx: Any, bits: Any, start: Any, shift: Any, field: Any, edges: Any, valid: Any, masks: Any, counts: Any
) -> Any:
    """Class the 64 elements bits[start:start + 64].

    masks[c] = bit j: element start + j is in class c and bit j of `valid` is set      uint64[8]
    counts[c] += number of set bits of masks[c]                                       int64[8]

    `edges` holds the edge of class c in its byte c, 255 from the last class on.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = ir.IntType(bits.dtype.bitwidth)
        group = ir.VectorType(element, GROUP)
        loaded = builder.load(_vector_at(context, builder, signature.args[0], args[0], args[1], group))
        loaded.align = bits.dtype.bitwidth // 8
        narrow = [builder.trunc(arg, element) if element.width < 64 else arg for arg in args[2:4]]
        shifted = builder.lshr(loaded, _splat(builder, narrow[0], GROUP))
        byte = builder.and_(shifted, _splat(builder, narrow[1], GROUP))
        if element.width > 8:
            byte = builder.trunc(byte, ir.VectorType(_U8, GROUP))
        above = ir.Constant(_LANES, ir.Undefined)
        above = builder.insert_element(above, args[5], ir.Constant(ir.IntType(32), 0))
        for c in range(1, LANES):
            edge = builder.trunc(builder.lshr(args[4], ir.Constant(_U64, 8 * (c - 1))), _U8)
            mask = builder.bitcast(builder.icmp_unsigned(">", byte, _splat(builder, edge, GROUP)), _U64)
            mask = builder.and_(mask, args[5])
            above = builder.insert_element(above, mask, ir.Constant(ir.IntType(32), c))
        order = ir.Constant(ir.VectorType(ir.IntType(32), LANES), list(range(1, LANES + 1)))
        higher = builder.shuffle_vector(above, ir.Constant(_LANES, [0] * LANES), order)
        exact = builder.xor(above, higher)  # classes are nested: c or higher, without c + 1 or higher
        zero = ir.Constant(ir.IntType(64), 0)
        stored = builder.store(exact, _vector_at(context, builder, signature.args[6], args[6], zero, _LANES))
        stored.align = 8
        place = _vector_at(context, builder, signature.args[7], args[7], zero, _LANES)
        before = builder.load(place)
        before.align = 8
        popcount = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_LANES, [_LANES]), "llvm.ctpop.v8i64")
        stored = builder.store(builder.add(before, builder.call(popcount, [exact])), place)
        stored.align = 8
        return context.get_dummy_value()

    return (
        types.void(bits, types.intp, types.uint64, types.uint64, types.uint64, types.uint64, masks, counts),
        codegen,
    )


@intrinsic  # type: ignore[untyped-decorator]
def lanes_below(typingctx: Any, left: Any, right: Any) -> Any:
    """Bit c of the uint64 result: left[c] < right[c], for two int64[8]."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(ir.IntType(64), 0)
        loaded = []
        for kind, value in zip(signature.args, args, strict=True):
            lanes = builder.load(_vector_at(context, builder, kind, value, zero, _LANES))
            lanes.align = 8
            loaded.append(lanes)
        return builder.zext(builder.bitcast(builder.icmp_signed("<", *loaded), _U8), _U64)

    return types.uint64(left, right), codegen


@intrinsic  # type: ignore[untyped-decorator]
def set_lane(typingctx: Any, lanes: Any, c: Any, value: Any) -> Any:
    """lanes[c] = value for an int64[8], as one store of all: a narrow one would stall the next wide load."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(ir.IntType(64), 0)
        place = _vector_at(context, builder, signature.args[0], args[0], zero, _LANES)
        before = builder.load(place)
        before.align = 8
        here = builder.icmp_signed("==", ir.Constant(_LANES, list(range(LANES))), _splat(builder, args[1], LANES))
        stored = builder.store(builder.select(here, _splat(builder, args[2], LANES), before), place)
        stored.align = 8
        return context.get_dummy_value()

    return types.void(lanes, types.int64, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def popcount(typingctx: Any, mask: Any) -> Any:
    """Number of set bits of a uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def trailing_zeros(typingctx: Any, mask: Any) -> Any:
    """Number of zero bits below the lowest set bit of a non-zero uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def bit_length(typingctx: Any, number: Any) -> Any:
    """Bits of a non-negative int64, 0 for 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zeros = builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(_U64, 64), zeros)

    return types.int64(types.int64), codegen


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
def select_bit(mask: Any, rank: int) -> int:
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
    start: int,
    stop: int,
    shift: int,
    field: int,
    edges: Any,
    ranks: Any,
    begins: Any,
    steps: Any,
    positions: Any,
    out_steps: Any,
    out: int,
) -> int:
    """Turn ranks back to positions; return how many changes were found.

    Class c has the ranks ranks[begins[c]:begins[c + 1]] (and steps there); output is in order of position from `out`.

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
    first = out
    for at in range(start, stop, GROUP):
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
    return out - first
