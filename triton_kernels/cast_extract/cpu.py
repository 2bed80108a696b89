"""The fused cast on the host: 64 elements rounded and compared at a time, in vector registers.

The rounding is written as LLVM vector arithmetic, which becomes the machine's own (AVX2, AVX-512, NEON); masters and
weights are read once, and only what changed is written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from ..bits import as_unsigned_numpy
from ..extract.cpu import GROUP
from ..jit import jit
from ..threads import run, split
from ..words import popcount, trailing_zeros
from .rounding import CastChanges

LEAST = 1 << 20  # elements a thread takes at least
TILE = 2048  # what it rounds before it looks for changes; stays in the first-level cache

HALF = 32
"""Elements that `move_half` takes: one register of AVX-512."""
FEW = 8
"""Changes of a half group up to which a quarter of the stores will do."""
CROWDED = TILE // 100
"""Changes of a tile from which on compressing every half group is quicker than going from change to change."""
COMPRESSES = bool(binding.get_host_cpu_features().get("avx512vbmi2"))
"""Whether the processor compresses vectors by a mask in one instruction."""
PROBED = 64
"""One in so many tiles is probed, and so many tiles at most."""

_NONE, _ONE, _TOP = np.uint64(0), np.uint64(1), np.uint64(1 << 63)

Segment = tuple[NDArray[np.int64], NDArray[np.uint16], NDArray[np.uint16]]

_WIDE, _NARROW = ir.VectorType(ir.IntType(32), GROUP), ir.VectorType(ir.IntType(16), GROUP)


def _all(number: int) -> Any:
    return ir.Constant(_WIDE, [number] * GROUP)


def _to_bf16(builder: Any, x: Any) -> Any:
    top = builder.lshr(x, _all(16))
    rounded = builder.add(builder.add(x, _all(0x7FFF)), builder.and_(top, _all(1)))
    nan = builder.icmp_unsigned(">", builder.and_(x, _all(0x7FFFFFFF)), _all(0x7F800000))
    return builder.select(nan, builder.or_(top, _all(0x40)), builder.lshr(rounded, _all(16)))


def _to_fp16(builder: Any, x: Any) -> Any:
    sign, a = builder.and_(builder.lshr(x, _all(16)), _all(0x8000)), builder.and_(x, _all(0x7FFFFFFF))
    m = builder.or_(builder.and_(a, _all(0x7FFFFF)), _all(0x800000))
    shift = builder.sub(_all(126), builder.lshr(a, _all(23)))
    # Wraps above 126, where `small` is not used: any shift in range will do.
    shift = builder.select(builder.icmp_unsigned(">", shift, _all(25)), _all(25), shift)
    shift = builder.select(builder.icmp_unsigned("<", shift, _all(1)), _all(1), shift)
    half = builder.sub(builder.shl(_all(1), builder.sub(shift, _all(1))), _all(1))
    odd = builder.and_(builder.lshr(m, shift), _all(1))
    small = builder.lshr(builder.add(builder.add(m, half), odd), shift)
    odd = builder.and_(builder.lshr(a, _all(13)), _all(1))
    normal = builder.add(builder.add(a, _all((0xFFF - 0x38000000) & 0xFFFFFFFF)), odd)
    normal = builder.lshr(normal, _all(13))
    rounded = builder.select(builder.icmp_unsigned("<", a, _all(0x38800000)), small, normal)
    rounded = builder.select(builder.icmp_unsigned(">=", a, _all(0x47800000)), _all(0x7C00), rounded)
    payload = builder.or_(_all(0x7E00), builder.and_(builder.lshr(a, _all(13)), _all(0x3FF)))
    rounded = builder.select(builder.icmp_unsigned(">", a, _all(0x7F800000)), payload, rounded)
    return builder.or_(sign, rounded)


def _rounding_mask(to_half: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def rounding_mask(typingctx: Any, master: Any, weights: Any, start: Any, rounded: Any, to: Any) -> Any:
        """Round 64 of `master` from `start` to `rounded` from `to` on; bit j of the result: not weights[start + j]."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            def group(kind: Any, value: Any, index: Any, vector: Any) -> Any:
                array = context.make_array(kind)(context, builder, value)
                first = cgutils.get_item_pointer(context, builder, kind, array, [index], wraparound=False)
                return builder.bitcast(first, vector.as_pointer())

            kinds = signature.args
            loaded = builder.load(group(kinds[0], args[0], args[2], _WIDE))
            loaded.align = 4
            before = builder.load(group(kinds[1], args[1], args[2], _NARROW))
            before.align = 2
            new = builder.trunc(to_half(builder, loaded), _NARROW)
            builder.store(new, group(kinds[3], args[3], args[4], _NARROW)).align = 2
            return builder.bitcast(builder.icmp_unsigned("!=", before, new), ir.IntType(GROUP))

        return types.uint64(master, weights, types.intp, rounded, types.intp), codegen

    return rounding_mask


def _move_half(most: int) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def move_half(
        typingctx: Any,
        mask: Any,
        rounded: Any,
        place: Any,
        weights: Any,
        at: Any,
        found: Any,
        old: Any,
        places: Any,
        to: Any,
    ) -> Any:
        """List what changed of 32 elements, then write them all (what did not change, as it was).

        For the k-th set bit j of the low 32 of `mask`: places[to + k] = at + j; found[to + k] = rounded[place + j];
        old[to + k] = weights[at + j]. There are at most `most` bits, and so many entries are written whatever the mask.
        """

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            half, flags = ir.VectorType(ir.IntType(16), HALF), ir.VectorType(ir.IntType(1), HALF)
            wide, lanes = ir.VectorType(ir.IntType(64), 8), ir.VectorType(ir.IntType(32), 8)

            def pointer(k: int, index: Any, vector: Any) -> Any:
                array = context.make_array(signature.args[k])(context, builder, args[k])
                first = cgutils.get_item_pointer(context, builder, signature.args[k], array, [index], wraparound=False)
                return builder.bitcast(first, vector.as_pointer())

            def first_of(vector: Any, start: int, count: int) -> Any:
                order = ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(start, start + count)))
                return builder.shuffle_vector(vector, vector, order)

            kind = ir.FunctionType(half, [half, flags, half])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.experimental.vector.compress.v32i16")
            chosen = builder.bitcast(builder.trunc(args[0], ir.IntType(HALF)), flags)
            after, before = builder.load(pointer(1, args[2], half)), builder.load(pointer(3, args[4], half))
            after.align = before.align = 2
            numbers = ir.Constant(half, list(range(HALF)))
            nothing = ir.Constant(half, ir.Undefined)
            moved = [builder.call(function, [x, chosen, nothing]) for x in (after, before, numbers)]
            few = ir.VectorType(ir.IntType(16), most)
            builder.store(first_of(moved[0], 0, most), pointer(5, args[8], few)).align = 2
            builder.store(first_of(moved[1], 0, most), pointer(6, args[8], few)).align = 2
            one = builder.insert_element(ir.Constant(wide, ir.Undefined), args[4], ir.Constant(ir.IntType(32), 0))
            first = builder.shuffle_vector(one, ir.Constant(wide, ir.Undefined), ir.Constant(lanes, [0] * 8))
            for k in range(0, most, 8):
                eight = builder.zext(first_of(moved[2], k, 8), wide)
                index = builder.add(args[8], ir.Constant(ir.IntType(64), k))
                builder.store(builder.add(eight, first), pointer(7, index, wide)).align = 8
            builder.store(after, pointer(3, args[4], half)).align = 2
            return context.get_dummy_value()

        signature = types.void(types.uint64, rounded, types.intp, weights, types.intp, found, old, places, types.intp)
        return signature, codegen

    return move_half


move_few, move_half = _move_half(FEW), _move_half(HALF)


@jit
def list_crowded(weights: Any, at: int, rounded: Any, masks: Any, found: Any, count: int) -> int:
    """List and write the changes of a whole tile at `at`, from `count` on in `found`; returns where they end.

    for each half group: `move_half`. Behind the changes up to 32 entries of `found` are overwritten.
    """
    positions, values, old_values = found
    for place in range(0, TILE, HALF):
        mask = masks[np.uint64(place // GROUP)] >> np.uint64(place % GROUP) & np.uint64(0xFFFFFFFF)
        changes = popcount(mask)
        if changes <= FEW:
            move_few(mask, rounded, place, weights, at + place, values, old_values, positions, count)
        else:
            move_half(mask, rounded, place, weights, at + place, values, old_values, positions, count)
        count += changes
    return count


bf16_mask, fp16_mask = _rounding_mask(_to_bf16), _rounding_mask(_to_fp16)


@jit
def scan(
    master: NDArray[Any],
    weights: NDArray[Any],
    half: bool,
    compresses: bool,
    start: int,
    stop: int,
    positions: NDArray[np.int64],
    values: NDArray[Any],
    old_values: NDArray[Any],
) -> tuple[int, int]:
    """Cast [start, stop) and list its changes until the output might overflow.

    for each tile of 2048 from start on, while 2048 more changes fit (the last, shorter one in padded copies):
        for each group of 64: rounded, masks[group] = round it, what differs from the weights
            (nothing waits for the outcome, so that many cache misses are under way)
        as often as masks have bits: j = lowest bit of the current mask, and without a branch on to the next mask that
            has any; emit (group + j, rounded[j], weights[group + j]); write it
        (with `compresses`, a crowded tile goes to `list_crowded`)

    Returns (next, count): [start, next) is done and gave `count` changes; next < stop means: call again from there.
    """
    count = 0
    at = start
    rounded, masks = np.empty(TILE, np.uint16), np.zeros(64, np.uint64)
    while at < stop and count + TILE + HALF <= positions.size:
        source, target, first = master, weights, at
        if at + TILE > stop:
            source, target, first = np.zeros(TILE, np.uint32), np.zeros(TILE, np.uint16), 0
            source[: stop - at] = master[at:stop]
            target[: stop - at] = weights[at:stop]
        changes, groups = 0, np.uint64(0)
        for group in range(TILE // GROUP):
            place = GROUP * group
            if half:
                mask = fp16_mask(source, target, first + place, rounded, place)
            else:
                mask = bf16_mask(source, target, first + place, rounded, place)
            masks[group] = mask
            groups |= np.uint64(mask != _NONE) << np.uint64(group)
            changes += popcount(mask)
        if compresses and changes >= CROWDED and at + TILE <= stop:
            found = positions, values, old_values
            count = list_crowded(weights, at, rounded, masks, found, count)
            at += TILE
            continue
        group = trailing_zeros(groups | _TOP)
        mask = masks[group]
        for _ in range(changes):
            j = GROUP * group + trailing_zeros(mask)
            positions[count] = at + j
            values[count] = rounded[j]
            old_values[count] = weights[at + j]
            weights[at + j] = rounded[j]
            count += 1
            mask &= mask - _ONE
            last = mask == _NONE
            groups &= ~(np.uint64(last) << np.uint64(group))
            group = trailing_zeros(groups | _TOP)
            mask = masks[group] if last else mask
        at += TILE
    return min(at, stop), count


@jit
def probe(master: NDArray[Any], weights: NDArray[Any], half: bool, start: int, stop: int, tiles: int) -> int:
    """Changes that so many tiles, spread evenly over [start, stop), would give."""
    rounded, changes = np.empty(GROUP, np.uint16), 0
    for tile in range(tiles):
        at = start + (stop - start) // tiles * tile
        for first in range(at, min(at + TILE, stop - GROUP + 1), GROUP):
            if half:
                changes += popcount(fp16_mask(master, weights, first, rounded, 0))
            else:
                changes += popcount(bf16_mask(master, weights, first, rounded, 0))
    return changes


def _room(source: NDArray[Any], target: NDArray[Any], half: bool, start: int, stop: int) -> int:
    """Entries for the changes of [start, stop), most likely, and for what `scan` wants free behind them.

    A list that must grow is copied, and both a copy and a list with much to spare are new pages, which the system
    clears first: at 5 % changed that took as long as all the rest.
    """
    tiles = min(PROBED, (stop - start) // (PROBED * TILE) + 1)
    expected = int(probe(source, target, half, start, stop, tiles)) * (stop - start) // (tiles * TILE)
    return expected + expected // 4 + 2 * (TILE + HALF)


def cast_extract(master: Tensor, weights: Tensor, half: bool) -> CastChanges:
    """Round 1-D contiguous int32 bits into 1-D contiguous int16 bits on the host, and list what differed."""
    source, target = as_unsigned_numpy(master), as_unsigned_numpy(weights)

    def piece(start: int, stop: int) -> list[Segment]:
        segments: list[Segment] = []
        room = _room(source, target, half, start, stop)
        while start < stop:
            found = np.empty(room, np.int64), np.empty(room, np.uint16), np.empty(room, np.uint16)
            start, count = scan(source, target, half, COMPRESSES, start, stop, *found)
            segments.append((found[0][:count], found[1][:count], found[2][:count]))
            room *= 2
        return segments

    segments = [segment for part in run(piece, split(weights.numel(), LEAST)) for segment in part]
    if not segments:
        return CastChanges(torch.empty(0, dtype=torch.int64), weights.new_empty(0), weights.new_empty(0))
    whole = (
        segments[0] if len(segments) == 1 else tuple(np.concatenate(column) for column in zip(*segments, strict=True))
    )
    positions, values, old_values = whole
    return CastChanges(*(torch.from_numpy(a) for a in (positions, values.view(np.int16), old_values.view(np.int16))))
