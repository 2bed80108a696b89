"""Classes of 64 elements at a time on the host, in vector registers.

An exponent byte is in class c or a higher one when it exceeds the edge of class c - 1. So seven comparisons of 64 bytes
give seven 64-bit masks, from which classes, their counts and the rank of any element are bit operations. LLVM turns the
comparisons into the machine's own compare and mask-move instructions (AVX2, AVX-512, NEON).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

GROUP = 64
LANES = 8

_U64, _I64, _U8 = ir.IntType(64), ir.IntType(64), ir.IntType(8)
_LANES = ir.VectorType(_U64, LANES)


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
def put_masks(
    typingctx: Any, bits: Any, start: Any, shift: Any, field: Any, edges: Any, valid: Any, masks: Any, at: Any
) -> Any:
    """Class the 64 elements bits[start:start + 64].

    masks[at + c] = bit j: element start + j is in class c or a higher one and bit j of `valid` is set     c in 0..7

    `edges` holds the edge of class c in its byte c, 255 from the last class on. Eight stores straight from the
    registers that compare; whoever loads them as one vector waits for them, so do that some groups later.
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
        for c in range(LANES):
            mask = args[5]
            if c:
                edge = builder.trunc(builder.lshr(args[4], ir.Constant(_U64, 8 * (c - 1))), _U8)
                above = builder.bitcast(builder.icmp_unsigned(">", byte, _splat(builder, edge, GROUP)), _U64)
                mask = builder.and_(above, mask)
            place = builder.add(args[7], ir.Constant(_I64, c))
            builder.store(mask, _vector_at(context, builder, signature.args[6], args[6], place, _U64)).align = 8
        return context.get_dummy_value()

    return (
        types.void(bits, types.intp, types.uint64, types.uint64, types.uint64, types.uint64, masks, types.intp),
        codegen,
    )


@intrinsic  # type: ignore[untyped-decorator]
def add_masks(typingctx: Any, masks: Any, at: Any, counts: Any) -> Any:
    """Add the set bits of the eight masks from `at` on to counts, int64[8]."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_vector_at(context, builder, signature.args[0], args[0], args[1], _LANES))
        loaded.align = 8
        place = _vector_at(context, builder, signature.args[2], args[2], ir.Constant(_I64, 0), _LANES)
        before = builder.load(place)
        before.align = 8
        popcount = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_LANES, [_LANES]), "llvm.ctpop.v8i64")
        builder.store(builder.add(before, builder.call(popcount, [loaded])), place).align = 8
        return context.get_dummy_value()

    return types.void(masks, types.intp, counts), codegen


@intrinsic  # type: ignore[untyped-decorator]
def reached(typingctx: Any, upcoming: Any, counts: Any) -> Any:
    """Bit c of the uint64 result: upcoming[c] < counts[c] - counts[c + 1] (0 behind the last), for two int64[8]."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = []
        for kind, value in zip(signature.args, args, strict=True):
            lanes = builder.load(_vector_at(context, builder, kind, value, ir.Constant(_I64, 0), _LANES))
            lanes.align = 8
            loaded.append(lanes)
        order = ir.Constant(ir.VectorType(ir.IntType(32), LANES), list(range(1, LANES + 1)))
        higher = builder.shuffle_vector(loaded[1], ir.Constant(_LANES, [0] * LANES), order)
        below = builder.icmp_signed("<", loaded[0], builder.sub(loaded[1], higher))
        return builder.zext(builder.bitcast(below, _U8), _U64)

    return types.uint64(upcoming, counts), codegen


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
