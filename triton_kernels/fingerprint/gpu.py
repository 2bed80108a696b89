"""The fingerprint on a GPU: each program adds up some tiles of one row of the box, torch adds up the programs."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ..box import MAX_RANK, Box
from ..kernel import kernel, warps
from ..placement import device_of
from .reference import GOLDEN, MODULUS, SPREAD

TILE = 1024
TILES = 8  # tiles a program adds up
WARPS = warps(128)

_GOLDEN = tl.constexpr(GOLDEN)
_SPREAD = tl.constexpr(SPREAD)


@kernel()
def mix(index: tl.tensor) -> Any:
    """The multiplier of a flat checkpoint index, as the int64 of the same bits (see `reference`)."""
    x = (index + 1).to(tl.uint64, bitcast=True) * _GOLDEN
    return (((x ^ (x >> 32)) * _SPREAD) | 1).to(tl.int64, bitcast=True)


@kernel()
def widen(bits: tl.tensor) -> Any:
    """Bits as the int64 of the same unsigned value (64-bit ones as they are)."""
    wide = bits.to(tl.int64)
    if bits.dtype.primitive_bitwidth < 64:
        wide = wide & ((1 << bits.dtype.primitive_bitwidth) - 1)
    return wide


@kernel("first", "stop", "groups", "src_offset", "dst_offset")
def box_kernel(
    storage: tl.tensor,
    partial: tl.tensor,
    first: tl.tensor,
    stop: tl.tensor,
    groups: tl.tensor,
    src_offset: tl.tensor,
    dst_offset: tl.tensor,
    n1: tl.tensor,
    n2: tl.tensor,
    n3: tl.tensor,
    n4: tl.tensor,
    s0: tl.tensor,
    s1: tl.tensor,
    s2: tl.tensor,
    s3: tl.tensor,
    s4: tl.tensor,
    src_step: tl.tensor,
    d0: tl.tensor,
    d1: tl.tensor,
    d2: tl.tensor,
    d3: tl.tensor,
    d4: tl.tensor,
    dst_step: tl.tensor,
    tile: tl.constexpr,
    tiles: tl.constexpr,
    align: tl.constexpr,
    tail: tl.constexpr,
) -> None:
    """Add up columns of one row of the box; the outer dims have sizes n*, source strides s*, destination strides d*.

    row, group = divmod(program, groups); src, dst = the offsets + (row as indices k_0 .. k_4) * strides
    total = 0
    for each of the tiles tiles of tile columns c of the group, from `first` to `stop`:    # no mask unless tail
        total += mix(src + c * src_step) * unsigned(storage[dst + c * dst_step])           # mod 2**64
    partial[program] = total
    align: a power of two that divides every row's start in the storage.
    """
    row = tl.program_id(0).to(tl.int64) // groups
    group = tl.program_id(0).to(tl.int64) % groups
    src = src_offset + row * 0
    dst = dst_offset + row * 0
    place = row
    k = place % n4
    src, dst, place = src + k * s4, dst + k * d4, place // n4
    k = place % n3
    src, dst, place = src + k * s3, dst + k * d3, place // n3
    k = place % n2
    src, dst, place = src + k * s2, dst + k * d2, place // n2
    k = place % n1
    src, dst, place = src + k * s1, dst + k * d1, place // n1
    src, dst = src + place * s0, dst + place * d0
    dst = tl.multiple_of(dst, align)
    begin = first + group * (tile * tiles)
    total = tl.zeros([tile], tl.int64)
    if tail:
        column = begin + tl.arange(0, tile)
        bits = tl.load(storage + dst + column * dst_step, mask=column < stop, other=0)
        total += mix(src + column * src_step) * widen(bits)
    else:
        live = tl.minimum(tl.cdiv(stop - begin, tile), tiles)
        for t in range(live):
            column = tl.multiple_of(begin + t * tile, align) + tl.arange(0, tile)
            bits = tl.load(storage + dst + column * dst_step)
            total += mix(src + column * src_step) * widen(bits)
    tl.store(partial + tl.program_id(0), tl.sum(total, 0))


@kernel("n")
def change_kernel(
    positions: tl.tensor,
    old: tl.tensor,
    new: tl.tensor,
    partial: tl.tensor,
    n: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """partial[program] = sum of mix(positions[i]) * (unsigned(new[i]) - unsigned(old[i])) over its tile, mod 2**64."""
    at = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    live = at < n
    position = tl.load(positions + at, mask=live, other=0)
    before, after = tl.load(old + at, mask=live, other=0), tl.load(new + at, mask=live, other=0)
    tl.store(partial + tl.program_id(0), tl.sum(mix(position) * (widen(after) - widen(before)), 0))


def outer_arguments(box: Box) -> tuple[int, ...]:
    """Sizes without the first and last dimension, source strides, destination strides; each padded on the left."""
    missing = MAX_RANK - len(box.sizes)
    sizes = (1,) * missing + box.sizes
    return (*sizes[1:-1], *((0,) * missing + box.src_strides), *((0,) * missing + box.dst_strides))


def total(bits: Tensor, box: Box, tile: int = TILE, tiles: int = TILES) -> int:
    """The fingerprint of a 1-D contiguous bits storage seen through a normalised, non-empty box (one host sync)."""
    columns = box.sizes[-1]
    rows = box.numel // columns
    tile = min(tile, max(64, 1 << (columns - 1).bit_length()))
    whole = columns - columns % tile
    starts = (box.dst_offset, *box.dst_strides[:-1])
    align = 16 if all(start % 16 == 0 for start in starts) else 1
    launches = [(0, whole, -(-whole // (tile * tiles)), tiles, False), (whole, columns, int(whole < columns), 1, True)]
    sums = []
    with device_of(bits):
        for first, stop, groups, each, tail in launches:
            if groups:
                partial = bits.new_empty(rows * groups, dtype=torch.int64)
                offsets = (first, stop, groups, box.src_offset, box.dst_offset)
                box_kernel[(rows * groups,)](
                    bits, partial, *offsets, *outer_arguments(box), tile, each, align, tail, num_warps=WARPS
                )
                sums.append(partial.sum())
    return int(torch.stack(sums).sum()) % MODULUS


def change_sum(positions: Tensor, old: Tensor, new: Tensor, tile: int = TILE) -> int:
    """By how much n changes move a fingerprint: int64[n], bits[n], bits[n], contiguous (one synchronisation)."""
    programs = -(-positions.numel() // tile)
    if programs == 0:
        return 0
    with device_of(positions):
        partial = positions.new_empty(programs)
        change_kernel[(programs,)](positions, old, new, partial, positions.numel(), tile, num_warps=WARPS)
        return int(partial.sum()) % MODULUS
