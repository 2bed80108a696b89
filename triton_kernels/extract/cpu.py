"""Extraction on the host: 64 elements compared at a time, in vector registers, into one 64-bit mask.

LLVM turns "compare two vectors of 64 integers, take the result as an integer" into the machine's own compare and
mask-move instructions (AVX2, AVX-512, NEON), which a plain loop does not reach; both inputs are read once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from ..bits import as_unsigned_numpy
from ..jit import jit
from ..threads import run, split
from ..words import trailing_zeros

GROUP = 64
TILE = 64  # groups
LEAST = 1 << 20  # elements a thread takes at least: below that, starting threads costs more than it gains

Segment = tuple[NDArray[np.int64], NDArray[Any]]


@intrinsic  # type: ignore[untyped-decorator]
def difference_mask(typingctx: Any, old: Any, new: Any, start: Any) -> Any:
    """Bit j of the uint64 result: old[start + j] != new[start + j], for j in 0..63, elements of one unsigned width."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.IntType(old.dtype.bitwidth), GROUP)
        loaded = []
        for kind, value in zip(signature.args[:2], args[:2], strict=True):
            array = context.make_array(kind)(context, builder, value)
            first = cgutils.get_item_pointer(context, builder, kind, array, [args[2]], wraparound=False)
            group = builder.load(builder.bitcast(first, vector.as_pointer()))
            group.align = old.dtype.bitwidth // 8
            loaded.append(group)
        return builder.bitcast(builder.icmp_unsigned("!=", *loaded), ir.IntType(GROUP))

    return types.uint64(old, new, types.intp), codegen


@jit
def scan(
    old: NDArray[Any], new: NDArray[Any], start: int, stop: int, positions: NDArray[np.int64], values: NDArray[Any]
) -> tuple[int, int]:
    """List the changes of [start, stop) until the output might overflow.

    for each group of 64 from start on, while 64 more changes fit:
        m = mask of differing elements
        while m: j = trailing zeros of m; emit (group + j, new[group + j]); m &= m - 1
    then the last, shorter group one by one.
    Where 64 groups fit, their masks are listed first, without a branch: whether a group changed cannot be predicted.

    Returns (next, count): [start, next) is done and gave `count` changes; next < stop means: call again from there.
    """
    count = 0
    at = start
    masks, firsts = np.empty(TILE, np.uint64), np.empty(TILE, np.int64)
    while at < stop and count + GROUP <= positions.size:
        if at + TILE * GROUP <= stop and count + TILE * GROUP <= positions.size:
            found = 0
            for _ in range(TILE):
                mask = difference_mask(old, new, at)
                masks[found] = mask
                firsts[found] = at
                found += mask != np.uint64(0)
                at += GROUP
            for k in range(found):
                mask = masks[k]
                while True:
                    changed = firsts[k] + trailing_zeros(mask)
                    positions[count] = changed
                    values[count] = new[changed]
                    count += 1
                    mask &= mask - np.uint64(1)
                    if mask == np.uint64(0):
                        break
        elif at + GROUP <= stop:
            mask = difference_mask(old, new, at)
            while mask != np.uint64(0):
                changed = at + trailing_zeros(mask)
                positions[count] = changed
                values[count] = new[changed]
                count += 1
                mask &= mask - np.uint64(1)
            at += GROUP
        else:
            for changed in range(at, stop):
                if old[changed] != new[changed]:
                    positions[count] = changed
                    values[count] = new[changed]
                    count += 1
            at = stop
    return at, count


def extract(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Positions int64[n] and values bits[n] of the changed elements of two 1-D contiguous host bits tensors."""
    old_bits, new_bits = as_unsigned_numpy(old), as_unsigned_numpy(new)

    def piece(start: int, stop: int) -> list[Segment]:
        segments: list[Segment] = []
        room = max(GROUP, (stop - start) // 32)  # pages that stay unwritten cost nothing
        while start < stop:
            positions, values = np.empty(room, np.int64), np.empty(room, new_bits.dtype)
            start, count = scan(old_bits, new_bits, start, stop, positions, values)
            segments.append((positions[:count], values[:count]))
            room *= 2
        return segments

    segments = [segment for part in run(piece, split(new.numel(), LEAST)) for segment in part]
    if not segments:
        return torch.empty(0, dtype=torch.int64), new.new_empty(0)
    positions, values = segments[0]  # pages of its arrays beyond the changes were never touched
    if len(segments) > 1:
        positions = np.concatenate([segment[0] for segment in segments])
        values = np.concatenate([segment[1] for segment in segments])
    return torch.from_numpy(positions), torch.from_numpy(values).view(new.dtype)
