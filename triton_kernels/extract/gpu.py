"""Extraction on a GPU: one dense read of both versions into slots, then a pass over the changes only."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from ..kernel import kernel, warps
from ..placement import device_of

BLOCK = 65536  # elements a program reads; offsets inside a block fit 16 bits
TILE = 2048  # elements it holds at a time: 8 for each of 256 threads, one 16-byte load of bf16
SLOT_SHARE = 8  # a block has room for one changed element in 8; fuller ones are read a second time
PIECE = 4096  # blocks for which slots exist at a time
WARPS = warps(256)
PACK_TILE, PACK_WARPS = 1024, warps(128)


@kernel("n", "first")
def scan_kernel(
    old: tl.tensor,
    new: tl.tensor,
    counts: tl.tensor,
    slot_offsets: tl.tensor,
    slot_values: tl.tensor,
    n: tl.tensor,
    first: tl.tensor,
    block_size: tl.constexpr,
    tile: tl.constexpr,
    room: tl.constexpr,
    tail: tl.constexpr,
) -> None:
    """Collect the changes of one block in its slot.

    block = first + program; rank = 0
    for each tile of the block:                       # tail: only elements below n; else no mask
        for each element i of the tile, in order:
            if old[i] != new[i]:
                if rank < room: slot[program][rank] = (i - block * block_size, new[i])
                rank += 1
    counts[program] = rank                            # above room: the slot is incomplete
    """
    program = tl.program_id(0).to(tl.int64)
    base = (program + first) * block_size
    slot = program * room
    lane = tl.arange(0, tile)
    filled = tl.zeros([], tl.int32)
    for start in range(0, block_size, tile):
        at = base + start + lane
        if tail:
            before = tl.load(old + at, mask=at < n, other=0)
            after = tl.load(new + at, mask=at < n, other=0)
        else:
            before = tl.load(old + at)
            after = tl.load(new + at)
        changed = before != after
        flag = changed.to(tl.int32)
        rank = filled + tl.cumsum(flag, 0) - flag
        keep = changed & (rank < room)
        tl.store(slot_offsets + slot + rank, (start + lane).to(tl.int16), mask=keep)
        tl.store(slot_values + slot + rank, after, mask=keep)
        filled += tl.sum(flag, 0)
    tl.store(counts + program, filled)


@kernel("first")
def pack_kernel(
    counts: tl.tensor,
    ends: tl.tensor,
    slot_offsets: tl.tensor,
    slot_values: tl.tensor,
    positions: tl.tensor,
    values: tl.tensor,
    first: tl.tensor,
    block_size: tl.constexpr,
    tile: tl.constexpr,
    room: tl.constexpr,
) -> None:
    """Move one block's slot to its place in the result.

    out = ends[program] - counts[program]
    if counts[program] <= room:
        for r in range(counts[program]):
            positions[out + r] = (first + program) * block_size + slot[program][r].offset
            values[out + r] = slot[program][r].value
    """
    program = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + program)
    out = tl.load(ends + program) - count
    base = (program + first) * block_size
    slot = program * room
    if count <= room:
        for start in range(0, count, tile):
            rank = start + tl.arange(0, tile)
            live = rank < count
            offset = tl.load(slot_offsets + slot + rank, mask=live, other=0).to(tl.int64) & 0xFFFF
            tl.store(positions + out + rank, base + offset, mask=live)
            value = tl.load(slot_values + slot + rank, mask=live, other=0)
            tl.store(values + out + rank, value, mask=live)


@kernel("n", "first")
def full_block_kernel(
    old: tl.tensor,
    new: tl.tensor,
    blocks: tl.tensor,
    counts: tl.tensor,
    ends: tl.tensor,
    positions: tl.tensor,
    values: tl.tensor,
    n: tl.tensor,
    first: tl.tensor,
    block_size: tl.constexpr,
    tile: tl.constexpr,
    tail: tl.constexpr,
) -> None:
    """Read a block again that did not fit its slot, and write its changes straight to the result.

    block = blocks[program]; out = ends[block] - counts[block]     # numbered from `first`
    for each element i of the block, in order:                     # tail: below n
        if old[i] != new[i]: (positions, values)[out] = (i, new[i]); out += 1
    """
    block = tl.load(blocks + tl.program_id(0))
    out = tl.load(ends + block) - tl.load(counts + block)
    base = (block + first) * block_size
    lane = tl.arange(0, tile)
    for start in range(0, block_size, tile):
        at = base + start + lane
        if tail:
            before = tl.load(old + at, mask=at < n, other=0)
            after = tl.load(new + at, mask=at < n, other=0)
        else:
            before = tl.load(old + at)
            after = tl.load(new + at)
        changed = before != after
        flag = changed.to(tl.int32)
        rank = out + tl.cumsum(flag, 0) - flag
        tl.store(positions + rank, at, mask=changed)
        tl.store(values + rank, after, mask=changed)
        out += tl.sum(flag, 0)


def extract(
    old: Tensor, new: Tensor, block: int = BLOCK, tile: int = TILE, room: int | None = None, first: int = 0
) -> tuple[Tensor, Tensor]:
    """Positions int64[n] and values bits[n] of the changed elements of two 1-D contiguous bits tensors.

    Args:
        old, new: the versions. Loads are vectorised when their storage starts at a multiple of 16 bytes.
        block, tile, room: elements of a block (at most 65536), of a tile, of a slot; for tests.
        first: the block to start at, earlier ones are not read; for tests.

    One host synchronisation for every 2**28 elements (two when a block overflows its slot).
    """
    room = block // SLOT_SHARE if room is None else room
    last = -(-new.numel() // block)
    with device_of(new):
        pieces = [
            _piece(old, new, (begin, min(begin + PIECE, last)), block, tile, room)
            for begin in range(first, last, PIECE)
        ]
    if not pieces:
        return new.new_empty(0, dtype=torch.int64), new.new_empty(0)
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def _piece(
    old: Tensor, new: Tensor, bounds: tuple[int, int], block: int, tile: int, room: int
) -> tuple[Tensor, Tensor]:
    first, last = bounds
    blocks, whole = last - first, min(last, new.numel() // block) - first
    counts = new.new_empty(blocks, dtype=torch.int32)
    slot_offsets = new.new_empty(blocks * room, dtype=torch.int16)
    slot_values = new.new_empty(blocks * room)
    for start, stop, tail in ((0, whole, False), (whole, blocks, True)):
        if start < stop:
            slot = slice(start * room, None)
            slots = (counts[start:], slot_offsets[slot], slot_values[slot])
            scan_kernel[(stop - start,)](
                old, new, *slots, new.numel(), first + start, block, tile, room, tail, num_warps=WARPS
            )
    ends = counts.cumsum(0, dtype=torch.int64)
    full = counts > room
    total, overflowed = torch.stack((ends[-1], full.sum())).tolist()
    positions, values = new.new_empty(total, dtype=torch.int64), new.new_empty(total)
    if total:
        small = min(tile, PACK_TILE)
        pack_kernel[(blocks,)](
            counts, ends, slot_offsets, slot_values, positions, values, first, block, small, room, num_warps=PACK_WARPS
        )
    if overflowed:
        again = full.nonzero().view(-1)
        out = (counts, ends, positions, values, new.numel(), first, block, tile)
        ends_in_tail = bool(full[-1]) and whole < blocks
        whole_blocks = overflowed - ends_in_tail
        if whole_blocks:
            full_block_kernel[(whole_blocks,)](old, new, again, *out, False, num_warps=WARPS)
        if ends_in_tail:
            full_block_kernel[(1,)](old, new, again[-1:], *out, True, num_warps=WARPS)
    return positions, values
