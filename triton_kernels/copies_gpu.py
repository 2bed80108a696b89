"""Blocks that a message holds in full: the old elements, then the new ones over them."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import triton.language as tl

from .bits_gpu import unsigned
from .kernel import kernel


@kernel("n")
def copy_kernel(
    old: tl.tensor,
    index: tl.tensor,
    offsets: tl.tensor,
    modes: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    word: tl.constexpr,
    block_size: tl.constexpr,
    chunk: tl.constexpr,
    tile: tl.constexpr,
    copied: tl.constexpr,
) -> None:
    """Write the old elements of one chunk of a block, if its mode is `copied`, to its place in the message."""
    program = tl.program_id(0).to(tl.int64)
    parts: tl.constexpr = block_size // chunk
    width: tl.constexpr = word // 8
    k, part = program // parts, program % parts
    if tl.load(modes + k) == copied:
        base, to = tl.load(index + k) * block_size, tl.load(offsets + k)
        for start in range(0, chunk, tile):
            place = part * chunk + start + tl.arange(0, tile)
            live = base + place < n
            bits = unsigned(tl.load(old + base + place, mask=live, other=0), word)
            for byte in tl.static_range(width):
                tl.store(out + to + place * width + byte, ((bits >> (8 * byte)) & 255).to(tl.uint8), mask=live)


@kernel()
def overwrite_kernel(
    positions: tl.tensor,
    values: tl.tensor,
    index: tl.tensor,
    starts: tl.tensor,
    offsets: tl.tensor,
    modes: tl.tensor,
    out: tl.tensor,
    word: tl.constexpr,
    block_size: tl.constexpr,
    chunk: tl.constexpr,
    tile: tl.constexpr,
    copied: tl.constexpr,
) -> None:
    """Write the new elements of one chunk's changes over what `copy_kernel` wrote."""
    program = tl.program_id(0).to(tl.int64)
    parts: tl.constexpr = block_size // chunk
    width: tl.constexpr = word // 8
    k, part = program // parts, program % parts
    if tl.load(modes + k) == copied:
        base, to = tl.load(index + k) * block_size, tl.load(offsets + k)
        begin, end = tl.load(starts + k * (parts + 1) + part), tl.load(starts + k * (parts + 1) + part + 1)
        for start in range(begin, end, tile):
            i = start + tl.arange(0, tile)
            live = i < end
            place = tl.load(positions + i, mask=live, other=0) - base
            bits = unsigned(tl.load(values + i, mask=live, other=0), word)
            for byte in tl.static_range(width):
                tl.store(out + to + place * width + byte, ((bits >> (8 * byte)) & 255).to(tl.uint8), mask=live)
