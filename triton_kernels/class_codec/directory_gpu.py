"""Sizes and counts of a message on a GPU, all checked before anything is allocated or decoded."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from ..bits_gpu import report
from ..errors import CorruptBlockError
from ..kernel import kernel, warps
from .planes import ERRORS
from .planes import TRUNCATED as TRUNCATED_CODE
from .planes_gpu import CLASSES, COPY, COUNT, STEPS, TRAILING, TRUNCATED, VALUES, VARINT, load_varint

TILE, WARPS = 1024, warps(256)
LANES, LANE_WARPS = 128, warps(128)  # blocks a program reads the headers of


@kernel("size", "blocks", "bitmap_bytes")
def directory_kernel(
    data: tl.tensor,
    index: tl.tensor,
    sizes: tl.tensor,
    offsets: tl.tensor,
    found: tl.tensor,
    error: tl.tensor,
    size: tl.tensor,
    blocks: tl.tensor,
    bitmap_bytes: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """Read which blocks are stored and their sizes (one program: a directory has 4 bytes a block at most).

    stored = 0
    for each bit b of the bitmap:
        if set: b must be below `blocks`; index[stored] = b; stored += 1
    at = end of the bitmap; offset = 0
    for r in range(stored):
        sizes[r], at = varint at `at`; offsets[r] = offset; offset += sizes[r]
    found = stored, at; at + offset must be `size`
    """
    lane = tl.arange(0, tile)
    stored, beyond = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    for start in range(0, bitmap_bytes * 8, tile):
        b = (start + lane).to(tl.int64)
        byte = tl.load(data + (b >> 3), mask=b < bitmap_bytes * 8, other=0).to(tl.int64)
        bit = (byte >> (b & 7)) & 1
        inside = (bit != 0) & (b < blocks)
        flag = inside.to(tl.int64)
        tl.store(index + stored + tl.cumsum(flag, 0) - flag, b, mask=inside)
        stored += tl.sum(flag, 0)
        beyond += tl.sum(bit, 0) - tl.sum(flag, 0)
    rank, end = tl.zeros([], tl.int64), tl.zeros([], tl.int64) + bitmap_bytes
    offset, long = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    for start in range(bitmap_bytes, tl.minimum(size, bitmap_bytes + 4 * stored), tile):
        at = start + lane
        last = tl.load(data + at, mask=at < size, other=255).to(tl.int64)
        before = tl.load(data + at - 1, mask=(at < size) & (at - 1 >= bitmap_bytes), other=0).to(tl.int64)
        more = before >= 128
        number = tl.where(more, (last << 7) | (before & 127), last)
        short = more & (last == 0)
        before = tl.load(data + at - 2, mask=(at < size) & (at - 2 >= bitmap_bytes), other=0).to(tl.int64)
        more = more & (before >= 128)
        number = tl.where(more, (number << 7) | (before & 127), number)
        before = tl.load(data + at - 3, mask=(at < size) & (at - 3 >= bitmap_bytes), other=0).to(tl.int64)
        more = more & (before >= 128)
        number = tl.where(more, (number << 7) | (before & 127), number)
        before = tl.load(data + at - 4, mask=(at < size) & (at - 4 >= bitmap_bytes), other=0).to(tl.int64)
        more = more & (before >= 128)
        ends = last < 128
        r = rank + tl.cumsum(ends.to(tl.int64), 0) - ends.to(tl.int64)
        ends = ends & (r < stored)
        number = tl.where(ends, number, 0)
        tl.store(sizes + r, number, mask=ends)
        tl.store(offsets + r, offset + tl.cumsum(number, 0) - number, mask=ends)
        offset += tl.sum(number, 0)
        long += tl.sum((ends & (more | short)).to(tl.int64), 0)
        rank += tl.sum(ends.to(tl.int64), 0)
        end = tl.maximum(end, tl.max(tl.where(ends, at + 1, 0).to(tl.int64), 0))
    code = tl.zeros([], tl.int32)
    code = tl.where(end + offset > size, TRUNCATED, code)
    code = tl.where(end + offset < size, TRAILING, code)
    code = tl.where(rank < stored, tl.where(bitmap_bytes + 4 * stored <= size, VARINT, TRUNCATED), code)
    code = tl.where(long > 0, VARINT, code)
    code = tl.where(stored == 0, COUNT, code)
    code = tl.where(beyond > 0, TRAILING, code)
    tl.store(error, code)
    tl.store(found, tl.where(code == 0, stored, 0).to(tl.int64))
    tl.store(found + 1, end)


@kernel("n", "width", "word", "classes")
def header_kernel(
    data: tl.tensor,
    found: tl.tensor,
    index: tl.tensor,
    sizes: tl.tensor,
    offsets: tl.tensor,
    counts: tl.tensor,
    sums: tl.tensor,
    modes: tl.tensor,
    planes: tl.tensor,
    totals: tl.tensor,
    error: tl.tensor,
    n: tl.tensor,
    width: tl.tensor,
    word: tl.tensor,
    classes: tl.tensor,
    block_size: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Read the header of a stored block in each lane.

    for k in the program's tile, below found[0]:
        [at, stop) = found[1] + offsets[k], sizes[k] bytes; room = elements of block index[k]
        if sizes[k] == room * width: modes[k] = COPY; totals[k] = room; planes[k] = at, at, stop
        else:
            active, head = byte, varint
            for c in range(classes), if bit c of active: counts[k][c] = varint; unless head & 1: sums[k][c] = varint
            modes[k] = head & 1; totals[k] = sum of counts[k]
            planes[k] = start of the unary plane, of the low plane, stop
    A number that no encoder writes is an error; its block then has no changes. totals[k] <= room, and <= 8 * sizes[k]
    unless it is a copy.
    """
    k = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    live = k < tl.load(found)
    at = tl.load(found + 1) + tl.load(offsets + k, mask=live, other=0)
    size = tl.load(sizes + k, mask=live, other=0)
    stop = at + size
    room = tl.minimum(n - tl.load(index + k, mask=live, other=0) * block_size, block_size)
    code = tl.where(live & (size > room * width), COUNT, 0).to(tl.int64)
    copy = live & (size == room * width)
    coded = live & (size < room * width)

    active = tl.load(data + at, mask=coded & (size > 0), other=0).to(tl.int64)
    code = tl.where(coded & (size == 0), TRUNCATED, code)
    code = tl.where(coded & (size > 0) & ((active == 0) | ((active >> classes) > 0)), CLASSES, code)
    going = coded & (code == 0)
    head, after, wrong = load_varint(data, at + 1, stop, going)
    code = tl.where(going & (wrong > 0), wrong, code)
    total = size * 0
    for c in range(classes):
        here = (code == 0) & going & (((active >> c) & 1) != 0)
        number, after, wrong = load_varint(data, after, stop, here)
        code = tl.where(here & (wrong > 0), wrong, code)
        code = tl.where(here & (code == 0) & (number == 0), COUNT, code)
        tl.store(counts + 8 * k + c, number, mask=here & (code == 0))
        total += tl.where(here, number, 0)
        here = here & (code == 0) & ((head & 1) == 0)
        length, after, wrong = load_varint(data, after, stop, here)
        code = tl.where(here & (wrong > 0), wrong, code)
        code = tl.where(here & (code == 0) & (length > word * number), COUNT, code)
        tl.store(sums + 8 * k + c, length, mask=here & (code == 0))
    unary_bytes = head >> 1
    code = tl.where(going & (code == 0) & (after + unary_bytes + (total + 7) // 8 > stop), TRUNCATED, code)
    code = tl.where(going & (code == 0) & (total > room), COUNT, code)
    good = going & (code == 0)
    tl.store(modes + k, tl.where(copy, COPY, tl.where((head & 1) != 0, VALUES, STEPS)).to(tl.int32), mask=live)
    tl.store(planes + 3 * k, tl.where(good, after, at), mask=live)
    tl.store(planes + 3 * k + 1, tl.where(good, after + unary_bytes, at), mask=live)
    tl.store(planes + 3 * k + 2, tl.where(good | copy, stop, at), mask=live)
    tl.store(totals + k, tl.where(copy, room, tl.where(good, total, 0)), mask=live)
    report(error, code)


class Directory(NamedTuple):
    """The stored blocks of a message; tensors on its device."""

    blocks: Tensor
    """int64[k], which blocks."""
    counts: Tensor
    """int64[k, 8], changes of each class."""
    sums: Tensor
    """int64[k, 8], sum of the lengths of each class."""
    modes: Tensor
    """int32[k]: steps, values or a copy."""
    planes: Tensor
    """int64[k, 3]: byte where the unary plane starts, where the low plane starts, where that ends (or the copy)."""
    totals: list[int]
    """Changes of each block."""
    copies: list[bool]
    """Which blocks are copies."""


def refuse(error: int, size: int, n: int) -> None:
    """Raise for an error code other than 0.

    Raises:
        CorruptBlockError: it is not 0.
    """
    if error:
        raise CorruptBlockError(f"cannot decode {size} bytes for {n} elements: {ERRORS[error]}")


def read_directory(data: Tensor, n: int, width: int, classes: int, block: int) -> Directory:
    """Check directory and headers of a message of at least one byte (one synchronisation).

    Raises:
        CorruptBlockError: they are not what an encoder writes.
    """
    blocks = -(-n // block)
    bitmap_bytes = -(-blocks // 8)
    if data.numel() < bitmap_bytes:
        refuse(TRUNCATED_CODE, data.numel(), n)
    index, sizes, offsets = data.new_zeros((3, max(blocks, 1)), dtype=torch.int64)
    found, error = data.new_zeros(2, dtype=torch.int64), data.new_zeros(1, dtype=torch.int32)
    directory_kernel[(1,)](
        data, index, sizes, offsets, found, error, data.numel(), blocks, bitmap_bytes, TILE, num_warps=WARPS
    )
    counts, sums = data.new_zeros((2, max(blocks, 1), 8), dtype=torch.int64)
    modes, totals = data.new_zeros(blocks, dtype=torch.int32), data.new_zeros(blocks, dtype=torch.int64)
    planes = data.new_zeros((max(blocks, 1), 3), dtype=torch.int64)
    tables = (index, sizes, offsets, counts, sums, modes, planes, totals, error)
    if blocks:
        header_kernel[(-(-blocks // LANES),)](
            data, found, *tables, n, width, 8 * width, classes, block, LANES, num_warps=LANE_WARPS
        )
    code, stored, *rest = torch.cat((error.long(), found[:1], totals, modes.long())).tolist()
    refuse(code, data.numel(), n)
    return Directory(
        index[:stored],
        counts[:stored],
        sums[:stored],
        modes[:stored],
        planes[:stored],
        rest[:stored],
        [mode == 2 for mode in rest[blocks : blocks + stored]],
    )
