"""The scatter on a GPU: count the hits of each block of changes, then write; memory follows the hits exactly."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ..box import MAX_RANK, Box
from ..fingerprint.gpu import mix, widen
from ..fingerprint.reference import MODULUS
from ..kernel import kernel, warps
from ..placement import device_of
from .applied import Applied, order_error

TILE = 512  # changes a program handles; at 1024 the 6-dimensional write takes over 200 registers
WARPS = warps(128)


@kernel()
def step(
    rest: tl.tensor,
    dst: tl.tensor,
    inside: tl.tensor,
    size: tl.tensor,
    src_stride: tl.tensor,
    dst_stride: tl.tensor,
) -> Any:
    """One dimension of the inversion: k = rest // src_stride, inside while k < size."""
    k = rest // src_stride
    return rest - k * src_stride, dst + k * dst_stride, inside & (k < size)


@kernel()
def locate(
    position: tl.tensor,
    src_offset: tl.tensor,
    dst_offset: tl.tensor,
    n0: tl.tensor,
    n1: tl.tensor,
    n2: tl.tensor,
    n3: tl.tensor,
    n4: tl.tensor,
    n5: tl.tensor,
    s0: tl.tensor,
    s1: tl.tensor,
    s2: tl.tensor,
    s3: tl.tensor,
    s4: tl.tensor,
    s5: tl.tensor,
    d0: tl.tensor,
    d1: tl.tensor,
    d2: tl.tensor,
    d3: tl.tensor,
    d4: tl.tensor,
    d5: tl.tensor,
    dims: tl.constexpr,
) -> Any:
    """Destination index of each position and whether it lies in the box (the loop over j of `reference`, unrolled)."""
    rest = position - src_offset
    inside = rest >= 0
    rest = tl.where(inside, rest, 0)
    dst = rest * 0 + dst_offset
    if dims > 5:
        rest, dst, inside = step(rest, dst, inside, n5, s5, d5)
    if dims > 4:
        rest, dst, inside = step(rest, dst, inside, n4, s4, d4)
    if dims > 3:
        rest, dst, inside = step(rest, dst, inside, n3, s3, d3)
    if dims > 2:
        rest, dst, inside = step(rest, dst, inside, n2, s2, d2)
    if dims > 1:
        rest, dst, inside = step(rest, dst, inside, n1, s1, d1)
    rest, dst, inside = step(rest, dst, inside, n0, s0, d0)
    return dst, inside & (rest == 0)


@kernel("n", "src_offset")
def count_kernel(
    positions: tl.tensor,
    counts: tl.tensor,
    n: tl.tensor,
    src_offset: tl.tensor,
    n0: tl.tensor,
    n1: tl.tensor,
    n2: tl.tensor,
    n3: tl.tensor,
    n4: tl.tensor,
    n5: tl.tensor,
    s0: tl.tensor,
    s1: tl.tensor,
    s2: tl.tensor,
    s3: tl.tensor,
    s4: tl.tensor,
    s5: tl.tensor,
    tile: tl.constexpr,
    dims: tl.constexpr,
) -> None:
    """counts[program] = how many of the program's tile positions lie in the box."""
    at = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    position = tl.load(positions + at, mask=at < n, other=-1)
    _, inside = locate(position, src_offset, 0, n0, n1, n2, n3, n4, n5, s0, s1, s2, s3, s4, s5, 0, 0, 0, 0, 0, 0, dims)
    tl.store(counts + tl.program_id(0), tl.sum(inside.to(tl.int32), 0))


@kernel("n", "src_offset", "dst_offset")
def select_kernel(
    positions: tl.tensor,
    counts: tl.tensor,
    ends: tl.tensor,
    taken: tl.tensor,
    mapped: tl.tensor,
    n: tl.tensor,
    src_offset: tl.tensor,
    dst_offset: tl.tensor,
    n0: tl.tensor,
    n1: tl.tensor,
    n2: tl.tensor,
    n3: tl.tensor,
    n4: tl.tensor,
    n5: tl.tensor,
    s0: tl.tensor,
    s1: tl.tensor,
    s2: tl.tensor,
    s3: tl.tensor,
    s4: tl.tensor,
    s5: tl.tensor,
    d0: tl.tensor,
    d1: tl.tensor,
    d2: tl.tensor,
    d3: tl.tensor,
    d4: tl.tensor,
    d5: tl.tensor,
    tile: tl.constexpr,
    dims: tl.constexpr,
) -> None:
    """List which of the program's positions lie in the box, and where.

    out = ends[program] - counts[program]
    for each i of the program's tile, in order:
        if positions[i] lies in the box, at s: taken[out] = i; mapped[out] = s; out += 1
    """
    program = tl.program_id(0)
    at = program.to(tl.int64) * tile + tl.arange(0, tile)
    position = tl.load(positions + at, mask=at < n, other=-1)
    dst, inside = locate(
        position, src_offset, dst_offset, n0, n1, n2, n3, n4, n5, s0, s1, s2, s3, s4, s5, d0, d1, d2, d3, d4, d5, dims
    )
    flag = inside.to(tl.int32)
    rank = tl.load(ends + program) - tl.load(counts + program) + tl.cumsum(flag, 0) - flag
    tl.store(taken + rank, at, mask=inside)
    tl.store(mapped + rank, dst, mask=inside)


@kernel("n", "src_offset", "dst_offset")
def write_kernel(
    storage: tl.tensor,
    positions: tl.tensor,
    values: tl.tensor,
    counts: tl.tensor,
    ends: tl.tensor,
    dst_index: tl.tensor,
    old_values: tl.tensor,
    partial: tl.tensor,
    n: tl.tensor,
    src_offset: tl.tensor,
    dst_offset: tl.tensor,
    n0: tl.tensor,
    n1: tl.tensor,
    n2: tl.tensor,
    n3: tl.tensor,
    n4: tl.tensor,
    n5: tl.tensor,
    s0: tl.tensor,
    s1: tl.tensor,
    s2: tl.tensor,
    s3: tl.tensor,
    s4: tl.tensor,
    s5: tl.tensor,
    d0: tl.tensor,
    d1: tl.tensor,
    d2: tl.tensor,
    d3: tl.tensor,
    d4: tl.tensor,
    d5: tl.tensor,
    tile: tl.constexpr,
    dims: tl.constexpr,
) -> None:
    """Write the program's changes that lie in the box and record what they overwrote.

    out = ends[program] - counts[program]; delta = 0
    for each (i, v) of the program's tile changes, in order:
        if i lies in the box, at s:
            dst_index[out] = s; old_values[out] = storage[s]; out += 1
            delta += mix(i) * (unsigned(v) - unsigned(storage[s])) mod 2**64
            storage[s] = v                    # positions are distinct and the box is one to one: nobody else writes s
    partial[program] = delta
    """
    program = tl.program_id(0)
    at = program.to(tl.int64) * tile + tl.arange(0, tile)
    position = tl.load(positions + at, mask=at < n, other=-1)
    dst, inside = locate(
        position, src_offset, dst_offset, n0, n1, n2, n3, n4, n5, s0, s1, s2, s3, s4, s5, d0, d1, d2, d3, d4, d5, dims
    )
    new = tl.load(values + at, mask=inside, other=0)
    old = tl.load(storage + dst, mask=inside, other=0)
    flag = inside.to(tl.int32)
    rank = tl.load(ends + program) - tl.load(counts + program) + tl.cumsum(flag, 0) - flag
    tl.store(dst_index + rank, dst, mask=inside)
    tl.store(old_values + rank, old, mask=inside)
    delta = mix(position) * (widen(new) - widen(old))
    tl.store(partial + program, tl.sum(tl.where(inside, delta, 0), 0))
    tl.store(storage + dst, new, mask=inside)


def box_arguments(box: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and source strides, and destination strides, last source dimension first, padded to MAX_RANK."""
    missing = MAX_RANK - len(box.sizes)
    one, zero = (1,) * missing, (0,) * missing
    return (*box.sizes[::-1], *one, *box.src_strides[::-1], *one), (*box.dst_strides[::-1], *zero)


def write(storage: Tensor, box: Box, positions: Tensor, values: Tensor, tile: int = TILE) -> Applied:
    """Apply changes to a 1-D contiguous bits storage through a normalised box that fits it (two synchronisations)."""
    n = positions.numel()
    programs = -(-n // tile)
    if n == 0 or box.numel == 0:
        programs = 0
    with device_of(storage):
        counts = storage.new_zeros(max(programs, 1), dtype=torch.int32)
        rank, (src_arguments, dst_arguments) = len(box.sizes), box_arguments(box)
        if programs:
            count_kernel[(programs,)](positions, counts, n, box.src_offset, *src_arguments, tile, rank, num_warps=WARPS)
        ends = counts.cumsum(0, dtype=torch.int64)
        disorder = (positions[1:] <= positions[:-1]).any() | (positions[:1] < 0).any()
        hits, disordered = torch.stack((ends[-1], disorder.to(torch.int64))).tolist()
        if disordered:
            raise order_error()
        dst_index, old_values = positions.new_empty(hits), storage.new_empty(hits)
        if hits == 0:
            return Applied(dst_index, old_values, 0)
        partial = positions.new_empty(programs)
        outputs = (counts, ends, dst_index, old_values, partial)
        offsets = (n, box.src_offset, box.dst_offset)
        write_kernel[(programs,)](
            storage, positions, values, *outputs, *offsets, *src_arguments, *dst_arguments, tile, rank, num_warps=WARPS
        )
        return Applied(dst_index, old_values, int(partial.sum()) % MODULUS)


def select(positions: Tensor, box: Box, tile: int = TILE) -> tuple[Tensor, Tensor]:
    """Which of int64[n] positions lie in a normalised box, and their destination indices (one synchronisation)."""
    n, programs = positions.numel(), -(-positions.numel() // tile)
    if n == 0 or box.numel == 0:
        return positions.new_empty(0), positions.new_empty(0)
    with device_of(positions):
        counts = positions.new_empty(programs, dtype=torch.int32)
        rank, (src_arguments, dst_arguments) = len(box.sizes), box_arguments(box)
        count_kernel[(programs,)](positions, counts, n, box.src_offset, *src_arguments, tile, rank, num_warps=WARPS)
        ends = counts.cumsum(0, dtype=torch.int64)
        taken, mapped = positions.new_empty((2, int(ends[-1])))
        arguments = (n, box.src_offset, box.dst_offset, *src_arguments, *dst_arguments, tile, rank)
        select_kernel[(programs,)](positions, counts, ends, taken, mapped, *arguments, num_warps=WARPS)
        return taken, mapped
