"""Elias-Fano blocks on a GPU: the same bytes as `reference`, a program a block."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from .. import copies_gpu
from ..bits_gpu import load_bits, report, store_bits, unsigned
from ..kernel import kernel, warps
from ..placement import device_of
from . import block
from .headers_cpu import corrupt, walk

TILE, WARPS = 512, warps(256)  # changes of a block, or bits of its high plane, that a program holds at a time
LANES, LANE_WARPS = 128, warps(128)
CHUNK = 8192  # elements of a copied block that a program writes

SPARSE, DENSE, HEADER = tl.constexpr(block.SPARSE), tl.constexpr(block.DENSE), tl.constexpr(block.HEADER)
ORDER = tl.constexpr(block.ORDER)


class Cut(NamedTuple):
    """How a unit is cut up; other numbers than the defaults are for tests."""

    block: int = block.BLOCK
    """Elements a block, a power of two up to 65536; part of the format."""
    chunk: int = CHUNK
    """Elements of a copied block that a program writes."""
    tile: int = TILE
    """Changes, or bits of the high plane, that a program holds at a time."""


@kernel("numel", "width", "blocks")
def plan_kernel(
    starts: tl.tensor,
    index: tl.tensor,
    modes: tl.tensor,
    lows: tl.tensor,
    sizes: tl.tensor,
    numel: tl.tensor,
    width: tl.tensor,
    blocks: tl.tensor,
    block_size: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Mode, low width and bytes of each stored block: one lane a block.

    count = starts[k + 1] - starts[k]; n = elements of block index[k]
    lows[k] = first l of 0..16 with the fewest bytes in (count * l + 7) / 8 + (count + (n >> l) + 1 + 7) / 8
    sizes[k] = header + those bytes + count * width; a copy when that is not smaller than header + n * width
    """
    k = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    live = k < blocks
    count = tl.load(starts + k + 1, mask=live, other=0) - tl.load(starts + k, mask=live, other=0)
    n = tl.minimum(numel - tl.load(index + k, mask=live, other=0) * block_size, block_size)
    best, low = (count + n + 8) // 8, k * 0
    for width_of_low in range(1, 17):
        size = (count * width_of_low + 7) // 8 + (count + (n >> width_of_low) + 8) // 8
        low = tl.where(size < best, width_of_low, low)
        best = tl.minimum(best, size)
    best += count * width
    dense = best >= n * width
    tl.store(modes + k, tl.where(dense, DENSE, SPARSE).to(tl.int32), mask=live)
    tl.store(lows + k, tl.where(dense, 0, low), mask=live)
    tl.store(sizes + k, tl.where(dense, n * width, best) + HEADER, mask=live)


@kernel("numel")
def write_kernel(
    positions: tl.tensor,
    values: tl.tensor,
    starts: tl.tensor,
    index: tl.tensor,
    modes: tl.tensor,
    lows: tl.tensor,
    offsets: tl.tensor,
    words: tl.tensor,
    numel: tl.tensor,
    word: tl.constexpr,
    block_size: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Write the header of one block and, unless it is a copy, its planes into zeroed words.

    u32 index[k]; u32 (count - 1) | modes[k] << 16 | l << 20                    # count = n for a copy
    for each change j at p = position - index[k] * block_size:
        bits j * l .. of the low plane = the l low bits of p; bit j + (p >> l) of the high plane = 1
        element j of the values = the new element
    """
    k = tl.program_id(0).to(tl.int64)
    first = tl.load(starts + k)
    count = tl.load(starts + k + 1) - first
    number = tl.load(index + k)
    base = number * block_size
    n = tl.minimum(numel - base, block_size)
    mode, low = tl.load(modes + k), tl.load(lows + k)
    at = 8 * tl.load(offsets + k)
    stored = tl.where(mode == DENSE, n, count)
    field = tl.arange(0, 2)
    head = tl.where(field == 0, number, (stored - 1) | (mode.to(tl.int64) << 16) | (low << 20))
    store_bits(words, at + 32 * field, head, head * 0 + 32, field < 2)
    if mode != DENSE:
        at += 8 * HEADER
        high = at + (count * low + 7) // 8 * 8
        value_at = high + (count + (n >> low) + 8) // 8 * 8
        for start in range(0, count, tile):
            j = start + tl.arange(0, tile)
            live = j < count
            p = tl.load(positions + first + j, mask=live, other=0) - base
            store_bits(words, at + j * low, p & ((1 << low) - 1), j * 0 + low, live)
            store_bits(words, high + j + (p >> low), j * 0 + 1, j * 0 + 1, live)
            bits = tl.load(values + first + j, mask=live, other=0)
            if word == 64:
                wide = bits.to(tl.int64)
                store_bits(words, value_at + j * 64, wide & 0xFFFFFFFF, j * 0 + 32, live)
                store_bits(words, value_at + j * 64 + 32, (wide >> 32) & 0xFFFFFFFF, j * 0 + 32, live)
            else:
                store_bits(words, value_at + j * word, unsigned(bits, word), j * 0 + word, live)


@kernel("numel")
def read_kernel(
    data: tl.tensor,
    index: tl.tensor,
    offsets: tl.tensor,
    before: tl.tensor,
    positions: tl.tensor,
    values: tl.tensor,
    error: tl.tensor,
    numel: tl.tensor,
    word: tl.constexpr,
    block_size: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Decode one block whose header was checked on the host.

    a copy:  positions[j] = base + j for j in range(n)
    else:    j = 0; for each set bit b of the high plane:
                 p = ((b - j) << l) | the l bits from j * l of the low plane; p must be below n
                 positions[j] = base + p; j += 1                                # while j < count
             j must end at count. (Whether positions ascend is checked by the caller.)
    values[j] = element j of the values
    """
    k = tl.program_id(0).to(tl.int64)
    at, first = tl.load(offsets + k), tl.load(before + k)
    base = tl.load(index + k) * block_size
    n = tl.minimum(numel - base, block_size)
    count = (tl.load(data + at + 4).to(tl.int64) | (tl.load(data + at + 5).to(tl.int64) << 8)) + 1
    head = tl.load(data + at + 6).to(tl.int64) | (tl.load(data + at + 7).to(tl.int64) << 8)
    mode, low = head & 15, head >> 4
    at += HEADER
    if mode == DENSE:
        for start in range(0, count, tile):
            j = start + tl.arange(0, tile)
            tl.store(positions + first + j, base + j, mask=j < count)
    else:
        high = at + (count * low + 7) // 8
        stop = high + (count + (n >> low) + 8) // 8
        seen = tl.zeros([], tl.int64)
        for start in range(0, 8 * (stop - high), tile):
            b = start + tl.arange(0, tile)
            byte = tl.load(data + high + (b >> 3), mask=(b >> 3) < stop - high, other=0).to(tl.int32)
            flag = (byte >> (b & 7).to(tl.int32)) & 1
            j = seen + tl.cumsum(flag, 0) - flag
            live = (flag != 0) & (j < count)
            p = ((b - j) << low) | load_bits(data, 8 * at + j * low, j * 0 + low, high, live, 3)
            report(error, tl.where(live & (p >= n), ORDER, 0))
            tl.store(positions + first + j, base + p, mask=live)
            seen += tl.sum(flag, 0)
        if seen != count:
            tl.atomic_max(error, ORDER)
        at = stop
    for start in range(0, count, tile):
        j = start + tl.arange(0, tile)
        live = j < count
        value = (j * 0).to(tl.int64)
        for byte in tl.static_range(word // 8):
            piece = tl.load(data + at + j * (word // 8) + byte, mask=live, other=0)
            value |= piece.to(tl.int64) << (8 * byte)
        tl.store(values + first + j, value.to(values.dtype.element_ty), mask=live)


def encode(positions: Tensor, values: Tensor, numel: int, old: Callable[[], Tensor], cut: Cut | None = None) -> Tensor:
    """Encode the changes of a unit; see the package. Positions are checked here; two synchronisations."""
    cut = Cut() if cut is None else cut
    if positions.numel() == 0:
        return positions.new_empty(0, dtype=torch.uint8)
    word = 8 * values.element_size()
    with device_of(positions):
        blocks = -(-numel // cut.block)
        bounds = torch.arange(blocks + 1, device=positions.device) * cut.block
        disorder = (positions[1:] <= positions[:-1]).any() | (positions[0] < 0) | (positions[-1] >= numel)
        disordered, *starts = torch.cat((disorder.long().view(1), torch.searchsorted(positions, bounds))).tolist()
        if disordered:
            raise ValueError(f"expected strictly ascending positions in 0..{numel - 1}")
        stored = [b for b in range(blocks) if starts[b] < starts[b + 1]]
        k = len(stored)
        index, of_block = torch.tensor(
            [stored, [starts[b] for b in stored]], dtype=torch.int64, device=positions.device
        )
        ends = torch.cat((of_block, of_block.new_tensor([positions.numel()])))
        lows, sizes = index.new_empty((2, k))
        modes = index.new_empty(k, dtype=torch.int32)
        plan_kernel[(-(-k // LANES),)](
            ends, index, modes, lows, sizes, numel, word // 8, k, cut.block, LANES, num_warps=LANE_WARPS
        )
        offsets = sizes.cumsum(0) - sizes
        size, copies = torch.stack((sizes.sum(), (modes == block.DENSE).sum())).tolist()
        words = index.new_zeros(size // 4 + 3, dtype=torch.int32)
        write_kernel[(k,)](
            positions, values, ends, index, modes, lows, offsets, words, numel, word, cut.block, cut.tile,
            num_warps=WARPS,
        )  # fmt: skip
        out: Tensor = words.view(torch.uint8)
        if copies:
            dense = old()
            if dense.dtype != values.dtype or dense.shape != (numel,) or not dense.is_contiguous():
                raise ValueError(f"expected {numel} contiguous old elements of {values.dtype}, got {dense.dtype}")
            parts = torch.arange(cut.block // cut.chunk + 1, device=index.device) * cut.chunk
            of_chunk = torch.searchsorted(positions, index[:, None] * cut.block + parts)
            copied = index, offsets + block.HEADER, modes, out
            programs = (k * (cut.block // cut.chunk),)
            shape = word, cut.block, cut.chunk, cut.tile, block.DENSE
            copies_gpu.copy_kernel[programs](dense, *copied, numel, *shape, num_warps=WARPS)
            copies_gpu.overwrite_kernel[programs](
                positions, values, index, of_chunk, *copied[1:], *shape, num_warps=WARPS
            )
        return out[:size]


def decode(
    data: Tensor, numel: int, dtype: torch.dtype, host: NDArray[np.uint8] | None = None, cut: Cut | None = None
) -> tuple[Tensor, Tensor]:
    """Inverse of `encode`; see the package. One synchronisation.

    Where a block starts follows from the header before it, which would cost a program on the device a memory latency
    each; the host walks over them before, and sends 24 bytes a block.
    """
    cut = Cut() if cut is None else cut
    if data.numel() == 0:
        return data.new_empty(0, dtype=torch.int64), data.new_empty(0, dtype=dtype)
    width = torch.empty(0, dtype=dtype).element_size()
    starts = walk(data.cpu().numpy() if host is None else host, numel, width, cut.block)
    with device_of(data):
        index, offsets, before = torch.from_numpy(np.stack(starts[:3])).to(data.device)
        total = int(starts.before[-1] + starts.counts[-1])
        positions, values = data.new_empty(total, dtype=torch.int64), data.new_empty(total, dtype=dtype)
        error = data.new_zeros(1, dtype=torch.int32)
        read_kernel[(index.numel(),)](
            data, index, offsets, before, positions, values, error, numel, 8 * width, cut.block, cut.tile,
            num_warps=WARPS,
        )  # fmt: skip
        disorder = (positions[1:] <= positions[:-1]).any()
        code, disordered = torch.stack((error[0].long(), disorder.long())).tolist()
        if code or disordered:
            raise corrupt(code or block.ORDER, data.numel(), numel)
        return positions, values
