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
