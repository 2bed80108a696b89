"""Classes of 64 elements at a time on the host, in vector registers.

A class is kept as a Gray code of three bits: bit b of every element is one bit of a word of plane b. Each is the union
of few ranges of exponent bytes, that is one or two comparisons of 64 bytes, and a class by itself is three bit
operations. The words of a tile of 64 groups lie side by side, so its elements are counted, summed up and searched in
vector registers as well. LLVM turns all of it into the machine's own instructions (AVX2, AVX-512, NEON).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..jit import jit

GROUP = 64
LANES = 8
PLANES = 3
TILE = 64
"""Groups whose planes are kept, counted and searched together."""

_U64, _I64, _U8 = ir.IntType(64), ir.IntType(64), ir.IntType(8)
_WORDS, _COUNTS = ir.VectorType(_U64, TILE), ir.VectorType(ir.IntType(16), TILE)


def _splat(builder: Any, scalar: Any, count: int) -> Any:
    vector = ir.VectorType(scalar.type, count)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), count), [0] * count)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


def _vector_at(context: Any, builder: Any, kind: Any, value: Any, index: Any, vector: Any) -> Any:
    array = context.make_array(kind)(context, builder, value)
    first = cgutils.get_item_pointer(context, builder, kind, array, [index], wraparound=False)
    return builder.bitcast(first, vector.as_pointer())


@jit
def code_of(c: int) -> int:
    """The Gray code of a class."""
    return c ^ (c >> 1)


@intrinsic  # type: ignore[untyped-decorator]
def put_planes(typingctx: Any, bits: Any, start: Any, shift: Any, field: Any, edges: Any, planes: Any, at: Any) -> Any:
    """Class the 64 elements bits[start:start + 64].

    bit j of planes[at + 64 * b] = bit b of the Gray code of the class of element start + j     b in 0..2

    `edges` holds the edge of class c in its byte c, 255 from the last class on. Stores straight from the registers that
    compare; whoever loads several of them as one vector waits for them, so do that some groups later.
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
        edge = [builder.trunc(builder.lshr(args[4], ir.Constant(_U64, 8 * c)), _U8) for c in range(LANES - 1)]

        def between(low: int, high: int) -> Any:
            """Classes above `low` up to `high`."""
            first = builder.add(edge[low], ir.Constant(_U8, 1))
            within = builder.sub(byte, _splat(builder, first, GROUP))
            count = _splat(builder, builder.sub(edge[high], edge[low]), GROUP)
            return builder.icmp_unsigned("<", within, count)

        codes = (
            builder.or_(between(0, 2), between(4, 6)),
            between(1, 5),
            builder.icmp_unsigned(">", byte, _splat(builder, edge[3], GROUP)),
        )
        for b, code in enumerate(codes):
            place = builder.add(args[6], ir.Constant(_I64, TILE * b))
            word = builder.bitcast(code, _U64)
            builder.store(word, _vector_at(context, builder, signature.args[5], args[5], place, _U64)).align = 8
        return context.get_dummy_value()

    signature = types.void(bits, types.intp, types.uint64, types.uint64, types.uint64, planes, types.intp)
    return signature, codegen


@intrinsic  # type: ignore[untyped-decorator]
def put_class(typingctx: Any, planes: Any, at: Any, code: Any, alone: Any, to: Any) -> Any:
    """alone[to + g] = the elements of group g of the tile at `at` whose code is `code`     g < 64"""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = None
        for b in range(PLANES):
            at = builder.add(args[1], ir.Constant(_I64, TILE * b))
            plane = builder.load(_vector_at(context, builder, signature.args[0], args[0], at, _WORDS))
            plane.align = 8
            bit = builder.and_(builder.lshr(args[2], ir.Constant(_U64, b)), ir.Constant(_U64, 1))
            same = builder.xor(plane, _splat(builder, builder.sub(bit, ir.Constant(_U64, 1)), TILE))
            word = same if word is None else builder.and_(word, same)
        place = _vector_at(context, builder, signature.args[3], args[3], args[4], _WORDS)
        builder.store(word, place).align = 8
        return context.get_dummy_value()

    return types.void(planes, types.intp, types.uint64, alone, types.intp), codegen


@intrinsic  # type: ignore[untyped-decorator]
def put_sums(typingctx: Any, words: Any, at: Any, sums: Any, to: Any) -> Any:
    """sums[to + g] = set bits of words[at:at + g + 1], int16     g < 64"""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_vector_at(context, builder, signature.args[0], args[0], args[1], _WORDS))
        loaded.align = 8
        kind = ir.FunctionType(_WORDS, [_WORDS])
        popcount = cgutils.get_or_insert_function(builder.module, kind, f"llvm.ctpop.v{TILE}i64")
        total = builder.trunc(builder.call(popcount, [loaded]), _COUNTS)
        zeros, step = ir.Constant(_COUNTS, [0] * TILE), 1
        while step < TILE:
            order = [g - step if g >= step else TILE for g in range(TILE)]
            order = ir.Constant(ir.VectorType(ir.IntType(32), TILE), order)
            total = builder.add(total, builder.shuffle_vector(total, zeros, order))
            step *= 2
        builder.store(total, _vector_at(context, builder, signature.args[2], args[2], args[3], _COUNTS)).align = 2
        return context.get_dummy_value()

    return types.void(words, types.intp, sums, types.intp), codegen


@intrinsic  # type: ignore[untyped-decorator]
def group_of(typingctx: Any, sums: Any, at: Any, rank: Any) -> Any:
    """The group of a tile that has the element of so high a rank: so many sums of its class are not above it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_vector_at(context, builder, signature.args[0], args[0], args[1], _COUNTS))
        loaded.align = 2
        rank = _splat(builder, builder.trunc(args[2], ir.IntType(16)), TILE)
        return builder.ctpop(builder.bitcast(builder.icmp_signed("<=", loaded, rank), _U64))

    return types.uint64(sums, types.intp, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def deposit(typingctx: Any, bits: Any, mask: Any) -> Any:
    """Bit k of `bits` at the place of the k-th set bit of `mask`; only where the processor `DEPOSITS`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_U64, [_U64, _U64])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.bmi.pdep.64"), args)

    return types.uint64(types.uint64, types.uint64), codegen
