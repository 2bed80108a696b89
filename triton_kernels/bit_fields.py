"""Eight equal bit fields of a word at a time on the host, in vector registers of whatever width the processor has."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

GROUP = 8
WIDEST = 7
"""Bits of a field: eight of them and the bits before the first fit a word."""

_I32 = ir.IntType(32)
_LANES, _WORDS = ir.VectorType(_I32, GROUP), ir.VectorType(ir.IntType(64), GROUP)


def _splat(builder: Any, scalar: Any) -> Any:
    vector = ir.VectorType(scalar.type, GROUP)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(_LANES, [0] * GROUP))


def _split(builder: Any, word: Any, width: Any) -> Any:
    """int32 lane k = (word >> k * width) & ((1 << width) - 1)."""
    shifts = builder.mul(_splat(builder, width), ir.Constant(_WORDS, list(range(GROUP))))
    one = ir.Constant(ir.IntType(64), 1)
    mask = _splat(builder, builder.sub(builder.shl(one, width), one))
    return builder.trunc(builder.and_(builder.lshr(_splat(builder, word), shifts), mask), _LANES)


def _store(context: Any, builder: Any, kind: Any, out: Any, at: Any, lanes: Any) -> None:
    """out[at:at + 8] = lanes, in the integer type of the array."""
    element = ir.IntType(kind.dtype.bitwidth)
    if element.width != _I32.width:
        convert = builder.sext if element.width > _I32.width else builder.trunc
        lanes = convert(lanes, ir.VectorType(element, GROUP))
    array = context.make_array(kind)(context, builder, out)
    place = cgutils.get_item_pointer(context, builder, kind, array, [at], wraparound=False)
    builder.store(lanes, builder.bitcast(place, lanes.type.as_pointer())).align = element.width // 8


@intrinsic  # type: ignore[untyped-decorator]
def put_fields(typingctx: Any, word: Any, width: Any, out: Any, at: Any) -> Any:
    """out[at + k] = field k of the word, for k < 8."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _store(context, builder, signature.args[2], args[2], args[3], _split(builder, args[0], args[1]))
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, out, types.intp), codegen


@intrinsic  # type: ignore[untyped-decorator]
def put_field_sums(typingctx: Any, word: Any, width: Any, total: Any, out: Any, at: Any) -> Any:
    """total += field k of the word; out[at + k] = total, for k < 8; returns the total. In int32, wrapping."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes, zeros = _split(builder, args[0], args[1]), ir.Constant(_LANES, [0] * GROUP)
        for step in (1, 2, 4):
            order = ir.Constant(_LANES, [k - step if k >= step else GROUP for k in range(GROUP)])
            lanes = builder.add(lanes, builder.shuffle_vector(lanes, zeros, order))
        sums = builder.add(lanes, _splat(builder, args[2]))
        _store(context, builder, signature.args[3], args[3], args[4], sums)
        return builder.add(args[2], builder.extract_element(lanes, ir.Constant(_I32, GROUP - 1)))

    return types.int32(types.uint64, types.uint64, types.int32, out, types.intp), codegen


@intrinsic  # type: ignore[untyped-decorator]
def put_steps(typingctx: Any, word: Any, width: Any, leads: Any, signs: Any, out: Any, at: Any) -> Any:
    """out[at + k] = field k of the word + (byte k of `leads` << width) + 1, negative where bit k of `signs` is set."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bytes_ = builder.bitcast(args[2], ir.VectorType(ir.IntType(8), GROUP))
        shifted = builder.shl(builder.zext(bytes_, _LANES), _splat(builder, builder.trunc(args[1], _I32)))
        magnitudes = builder.add(_split(builder, args[0], args[1]), shifted)
        flags = builder.bitcast(builder.trunc(args[3], ir.IntType(8)), ir.VectorType(ir.IntType(1), GROUP))
        above = builder.add(magnitudes, ir.Constant(_LANES, [1] * GROUP))
        steps = builder.select(flags, builder.not_(magnitudes), above)  # ~m is -(m + 1)
        _store(context, builder, signature.args[4], args[4], args[5], steps)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64, types.uint64, out, types.intp), codegen
