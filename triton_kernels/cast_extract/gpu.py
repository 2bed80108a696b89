"""The fused cast on a GPU: one dense read of masters and weights into slots, then a pass over the changes only."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ..kernel import kernel, warps
from ..placement import device_of
from .rounding import CastChanges

BLOCK = 65536  # elements a program reads; offsets inside a block fit 16 bits
TILE = 1024  # elements it holds at a time: 4 for each of 256 threads, one 16-byte load of fp32
SLOT_SHARE = 8  # a block has room for one changed element in 8; fuller ones are read a second time
PIECE = 4096  # blocks for which slots exist at a time
WARPS = warps(256)
PACK_TILE, PACK_WARPS = 1024, warps(128)


@kernel()
def round_half(x: tl.tensor, half: tl.constexpr) -> Any:
    """Bits of float32 (int32) to those of fp16 (half) or bf16, int16: `reference.to_fp16`, `to_bf16`.

    On integers: Triton's own conversion is not the same everywhere (its interpreter truncates).
    """
    bits = x.to(tl.uint32, bitcast=True)
    a = bits & 0x7FFFFFFF
    nan = a > 0x7F800000
    if half:
        m, exponent = (a & 0x7FFFFF) | 0x800000, a >> 23
        shift = tl.where(exponent > 125, 1, tl.where(exponent < 101, 25, 126 - exponent))
        small = (m + (((a * 0 + 1) << (shift - 1)) - 1) + ((m >> shift) & 1)) >> shift
        normal = (a - 0x38000000 + 0xFFF + ((a >> 13) & 1)) >> 13
        rounded = tl.where(a >= 0x38800000, normal, small)
        rounded = tl.where(a >= 0x47800000, 0x7C00, rounded)
        rounded = tl.where(nan, 0x7E00 | ((a >> 13) & 0x3FF), rounded)
        rounded = rounded | ((bits >> 16) & 0x8000)
    else:
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = tl.where(nan, (bits >> 16) | 0x40, rounded)
    return rounded.to(tl.uint16).to(tl.int16, bitcast=True)


@kernel("n", "first")
def cast_kernel(
    master: tl.tensor,
    weights: tl.tensor,
    counts: tl.tensor,
    slot_offsets: tl.tensor,
    slot_values: tl.tensor,
    slot_old: tl.tensor,
    n: tl.tensor,
    first: tl.tensor,
    half: tl.constexpr,
    block_size: tl.constexpr,
    tile: tl.constexpr,
    room: tl.constexpr,
    tail: tl.constexpr,
) -> None:
    """Cast one block in place and collect its changes in its slot, as many as there is room for.

    block = first + program; rank = 0
    for each tile of the block:                       # tail: only elements below n; else no mask
        for each element i of the tile, in order:
            new = round(master[i])
            if new != weights[i]:
                if rank < room:
                    slot[program][rank] = (i - block * block_size, new, weights[i]); weights[i] = new
                rank += 1
    counts[program] = rank                            # above room: changes from `room` on are still to be made
    """
    program = tl.program_id(0).to(tl.int64)
    base = (program + first) * block_size
    slot = program * room
    master, weights = master + base, weights + base
    left = tl.minimum(n - base, block_size).to(tl.int32)
    lane = tl.arange(0, tile)
    filled = tl.zeros([], tl.int32)
    for start in range(0, block_size, tile):
        at = start + lane
        if tail:
            after = round_half(tl.load(master + at, mask=at < left, other=0), half)
            before = tl.load(weights + at, mask=at < left, other=0)
            changed = (before != after) & (at < left)
        else:
            after = round_half(tl.load(master + at), half)
            before = tl.load(weights + at)
            changed = before != after
        flag = changed.to(tl.int32)
        rank = filled + tl.cumsum(flag, 0) - flag
        keep = changed & (rank < room)
        tl.store(slot_offsets + slot + rank, at.to(tl.int16), mask=keep)
        tl.store(slot_values + slot + rank, after, mask=keep)
        tl.store(slot_old + slot + rank, before, mask=keep)
        tl.store(weights + at, after, mask=keep)
        filled += tl.sum(flag, 0)
    tl.store(counts + program, filled)


@kernel("first")
def pack_kernel(
    counts: tl.tensor,
    ends: tl.tensor,
    slot_offsets: tl.tensor,
    slot_values: tl.tensor,
    slot_old: tl.tensor,
    positions: tl.tensor,
    values: tl.tensor,
    old_values: tl.tensor,
    first: tl.tensor,
    block_size: tl.constexpr,
    tile: tl.constexpr,
    room: tl.constexpr,
) -> None:
    """Move one block's slot to its place in the result.

    out = ends[program] - counts[program]
    for r in range(min(counts[program], room)):
        positions[out + r] = (first + program) * block_size + slot[program][r].offset
        values[out + r], old_values[out + r] = slot[program][r].value, slot[program][r].old
    """
    program = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + program)
    out = tl.load(ends + program) - count
    base = (program + first) * block_size
    slot = program * room
    for start in range(0, tl.minimum(count, room), tile):
        rank = start + tl.arange(0, tile)
        live = rank < tl.minimum(count, room)
        offset = tl.load(slot_offsets + slot + rank, mask=live, other=0).to(tl.int64) & 0xFFFF
        tl.store(positions + out + rank, base + offset, mask=live)
        tl.store(values + out + rank, tl.load(slot_values + slot + rank, mask=live, other=0), mask=live)
        tl.store(old_values + out + rank, tl.load(slot_old + slot + rank, mask=live, other=0), mask=live)


@kernel("n", "first")
def full_block_kernel(
    master: tl.tensor,
    weights: tl.tensor,
    blocks: tl.tensor,
    counts: tl.tensor,
    ends: tl.tensor,
    positions: tl.tensor,
    values: tl.tensor,
    old_values: tl.tensor,
    n: tl.tensor,
    first: tl.tensor,
    half: tl.constexpr,
    block_size: tl.constexpr,
    tile: tl.constexpr,
    room: tl.constexpr,
    tail: tl.constexpr,
) -> None:
    """Finish a block that did not fit its slot: what still differs are its changes from number `room` on.

    block = blocks[program]; out = ends[block] - counts[block] + room              # numbered from `first`
    for each element i of the block, in order:                                     # tail: below n
        if round(master[i]) != weights[i]: (positions, values, old_values)[out] = ...; out += 1; write it
    """
    block = tl.load(blocks + tl.program_id(0))
    out = tl.load(ends + block) - tl.load(counts + block) + room
    base = (block + first) * block_size
    positions, values, old_values = positions + out, values + out, old_values + out
    master, weights = master + base, weights + base
    left = tl.minimum(n - base, block_size).to(tl.int32)
    lane, filled = tl.arange(0, tile), tl.zeros([], tl.int32)
    for start in range(0, block_size, tile):
        at = start + lane
        if tail:
            after = round_half(tl.load(master + at, mask=at < left, other=0), half)
            before = tl.load(weights + at, mask=at < left, other=0)
            changed = (before != after) & (at < left)
        else:
            after = round_half(tl.load(master + at), half)
            before = tl.load(weights + at)
            changed = before != after
        flag = changed.to(tl.int32)
        rank = filled + tl.cumsum(flag, 0) - flag
        tl.store(positions + rank, base + at, mask=changed)
        tl.store(values + rank, after, mask=changed)
        tl.store(old_values + rank, before, mask=changed)
        tl.store(weights + at, after, mask=changed)
        filled += tl.sum(flag, 0)


def cast_extract(
    master: Tensor,
    weights: Tensor,
    half: bool,
    block: int = BLOCK,
    tile: int = TILE,
    room: int | None = None,
    first: int = 0,
) -> CastChanges:
    """Round 1-D contiguous int32 bits into 1-D contiguous int16 bits, and list what differed.

    Args:
        master, weights: loads are vectorised when their storage starts at a multiple of 16 bytes.
        half: to fp16, not bf16.
        block, tile, room: elements of a block (at most 65536), of a tile, of a slot; for tests.
        first: the block to start at, earlier ones are not touched; for tests.

    One host synchronisation for every 2**28 elements.
    """
    room = block // SLOT_SHARE if room is None else room
    last = -(-weights.numel() // block)
    with device_of(weights):
        pieces = [
            _piece(master, weights, half, (begin, min(begin + PIECE, last)), block, tile, room)
            for begin in range(first, last, PIECE)
        ]
    if not pieces:
        return CastChanges(weights.new_empty(0, dtype=torch.int64), weights.new_empty(0), weights.new_empty(0))
    if len(pieces) == 1:
        return pieces[0]
    return CastChanges(*(torch.cat(column) for column in zip(*pieces, strict=True)))


def _piece(
    master: Tensor, weights: Tensor, half: bool, bounds: tuple[int, int], block: int, tile: int, room: int
) -> CastChanges:
    first, last = bounds
    n, blocks, whole = weights.numel(), last - first, min(last, weights.numel() // block) - first
    counts = weights.new_empty(blocks, dtype=torch.int32)
    slots = weights.new_empty((3, blocks * room))
    for start, stop, tail in ((0, whole, False), (whole, blocks, True)):
        if start < stop:
            of_launch = (counts[start:], *slots[:, start * room :])
            cast_kernel[(stop - start,)](
                master, weights, *of_launch, n, first + start, half, block, tile, room, tail, num_warps=WARPS
            )
    ends = counts.cumsum(0, dtype=torch.int64)
    full = counts > room
    total, overflowed = torch.stack((ends[-1], full.sum())).tolist()
    found = CastChanges(weights.new_empty(total, dtype=torch.int64), weights.new_empty(total), weights.new_empty(total))
    if total:
        small = min(tile, PACK_TILE)
        pack_kernel[(blocks,)](counts, ends, *slots, *found, first, block, small, room, num_warps=PACK_WARPS)
    if overflowed:
        again = full.nonzero().view(-1)
        arguments = (counts, ends, *found, n, first, half, block, tile, room)
        ends_in_tail = bool(full[-1]) and whole < blocks
        whole_blocks = overflowed - ends_in_tail
        if whole_blocks:
            full_block_kernel[(whole_blocks,)](master, weights, again, *arguments, False, num_warps=WARPS)
        if ends_in_tail:
            full_block_kernel[(1,)](master, weights, again[-1:], *arguments, True, num_warps=WARPS)
    return found
