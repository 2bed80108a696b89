"""A bucket of the context table as one vector: 16 slots are compared, or moved by one, at once.

LLVM turns these operations on <16 x i32> into the machine's own vector instructions, which loops with an early exit do
not reach.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from slipstream.core.drafter.arrays import BUCKET, TAG_MASK

_LANE = ir.IntType(32)
_VECTOR = ir.VectorType(_LANE, BUCKET)
_MASK = ir.IntType(BUCKET)


def _lanes(values: Any) -> ir.Constant:
    return ir.Constant(_VECTOR, [ir.Constant(_LANE, int(value)) for value in values])


def _splat(builder: Any, scalar: Any) -> Any:
    first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), scalar, ir.Constant(_LANE, 0))
    return builder.shuffle_vector(first, first, _lanes([0] * BUCKET))


def _pointer(context: Any, builder: Any, kind: Any, array: Any, bucket: Any) -> Any:
    """Address of the first slot of a bucket of uint32[buckets, BUCKET]."""
    made = context.make_array(kind)(context, builder, array)
    zero = ir.Constant(bucket.type, 0)
    first = cgutils.get_item_pointer(context, builder, kind, made, [bucket, zero], wraparound=False)
    return builder.bitcast(first, _VECTOR.as_pointer())


@intrinsic  # type: ignore[untyped-decorator]
def slots_of_tag(typingctx: Any, slots: Any, bucket: Any, tag: Any) -> Any:
    """Bit i of the int64 result: slot i is in use and has this tag."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_pointer(context, builder, signature.args[0], args[0], args[1]), align=4)
        tags = builder.and_(loaded, _lanes([TAG_MASK] * BUCKET))
        same = builder.icmp_unsigned("==", tags, _splat(builder, builder.trunc(args[2], _LANE)))
        used = builder.icmp_unsigned("!=", loaded, _lanes([0] * BUCKET))
        return builder.zext(builder.bitcast(builder.and_(same, used), _MASK), ir.IntType(64))

    return types.int64(slots, types.intp, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def empty_slots(typingctx: Any, slots: Any, bucket: Any) -> Any:
    """Bit i of the int64 result: slot i is empty."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_pointer(context, builder, signature.args[0], args[0], args[1]), align=4)
        empty = builder.icmp_unsigned("==", loaded, _lanes([0] * BUCKET))
        return builder.zext(builder.bitcast(empty, _MASK), ir.IntType(64))

    return types.int64(slots, types.intp), codegen


@intrinsic  # type: ignore[untyped-decorator]
def push_slot(typingctx: Any, slots: Any, bucket: Any, slot: Any, leaving: Any) -> Any:
    """Move slots 0 .. leaving - 1 up by one, over slot `leaving`, and put `slot` first."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1])
        loaded = builder.load(pointer, align=4)
        first = _splat(builder, builder.trunc(args[2], _LANE))
        moved = builder.shuffle_vector(loaded, first, _lanes([BUCKET, *range(BUCKET - 1)]))
        up_to = _splat(builder, builder.trunc(args[3], _LANE))
        moves = builder.icmp_unsigned("<=", _lanes(range(BUCKET)), up_to)
        builder.store(builder.select(moves, moved, loaded), pointer, align=4)
        return context.get_dummy_value()

    return types.void(slots, types.intp, types.int64, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def lowest_bit(typingctx: Any, mask: Any) -> Any:
    """Number of zero bits below the lowest set bit of a non-zero int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), codegen
