"""The bit vectors of blocks on a GPU: where each one's gaps and low bits are, from the counts alone."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from ..bits_gpu import report
from ..kernel import kernel, warps
from .planes_gpu import COPY, COUNT, VALUES, low_width

LANES, WARPS = 128, warps(128)


class Vectors(NamedTuple):
    """Tables of blocks; vector c is of the ranks of class c, vector 8 + c of its lengths. One row a block."""

    begins: Tensor
    """int64[k, 9], class c has the changes begins[c]:begins[c + 1]."""
    segments: Tensor
    """int64[k, 9], class c has the bits segments[c]:segments[c + 1] of the bitmap, in order of class and rank."""
    numbers: Tensor
    """int64[k, 16], bits of a vector."""
    widths: Tensor
    """int64[k, 16], low bits of its gaps."""
    firsts: Tensor
    """int64[k, 17], it has the gaps firsts[v]:firsts[v + 1]."""
    lows: Tensor
    """int64[k, 17], and the bits lows[v]:lows[v + 1] of the low plane."""
    inverted: Tensor
    """int32[k], bit v: zeros are listed, not ones; bits 0..7 set for a copy."""


@kernel("blocks")
def vector_kernel(
    counts: tl.tensor,
    sums: tl.tensor,
    sizes: tl.tensor,
    modes: tl.tensor,
    begins: tl.tensor,
    segments: tl.tensor,
    numbers: tl.tensor,
    widths: tl.tensor,
    firsts: tl.tensor,
    lows: tl.tensor,
    inverted: tl.tensor,
    error: tl.tensor,
    blocks: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """Fill `Vectors` for a block in each lane.

    for v in range(16):  c = v % 8
        n, ones = (sizes[c], counts[c]) if v < 8 else (counts[c] + sums[c], counts[c]); no ones in mode VALUES
        listed = min(ones, n - ones); width = low_width(n, listed)
        firsts[v + 1] = firsts[v] + listed; lows[v + 1] = lows[v] + listed * width; likewise begins, segments
    counts[c] above sizes[c] is an error (and cut down to it).
    """
    k = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    live = k < blocks
    mode = tl.load(modes + k, mask=live, other=0)
    flip = tl.where(mode == COPY, 255, 0)
    gap, low, code = k * 0, k * 0, k * 0
    begin, segment = k * 0, k * 0
    for c in range(8):
        ones = tl.load(counts + 8 * k + c, mask=live, other=0)
        n = tl.load(sizes + 8 * k + c, mask=live, other=0)
        code = tl.where(ones > n, COUNT, code)
        ones = tl.minimum(ones, n)
        listed = tl.where(ones > 0, tl.minimum(ones, n - ones), 0)
        width = low_width(n, listed)
        flip |= (2 * ones > n).to(tl.int32) << c
        tl.store(begins + 9 * k + c, begin, mask=live)
        tl.store(segments + 9 * k + c, segment, mask=live)
        tl.store(numbers + 16 * k + c, n, mask=live)
        tl.store(widths + 16 * k + c, width, mask=live)
        tl.store(firsts + 17 * k + c, gap, mask=live)
        tl.store(lows + 17 * k + c, low, mask=live)
        begin, segment, gap, low = begin + ones, segment + n, gap + listed, low + listed * width
    tl.store(begins + 9 * k + 8, begin, mask=live)
    tl.store(segments + 9 * k + 8, segment, mask=live)
    for c in range(8):
        ones = tl.load(counts + 8 * k + c, mask=live & (mode != VALUES), other=0)
        ones = tl.minimum(ones, tl.load(sizes + 8 * k + c, mask=live, other=0))
        n = ones + tl.where(ones > 0, tl.load(sums + 8 * k + c, mask=live, other=0), 0)
        listed = tl.minimum(ones, n - ones)
        width = low_width(n, listed)
        flip |= (2 * ones > n).to(tl.int32) << (8 + c)
        tl.store(numbers + 16 * k + 8 + c, n, mask=live)
        tl.store(widths + 16 * k + 8 + c, width, mask=live)
        tl.store(firsts + 17 * k + 8 + c, gap, mask=live)
        tl.store(lows + 17 * k + 8 + c, low, mask=live)
        gap, low = gap + listed, low + listed * width
    tl.store(firsts + 17 * k + 16, gap, mask=live)
    tl.store(lows + 17 * k + 16, low, mask=live)
    tl.store(inverted + k, flip, mask=live)
    report(error, code)


def list_vectors(counts: Tensor, sums: Tensor, sizes: Tensor, modes: Tensor, error: Tensor) -> Vectors:
    """Tables of `counts.shape[0]` blocks; counts, sums, sizes int64[k, 8], modes int32[k], all contiguous."""
    blocks = counts.shape[0]
    columns = {"begins": 9, "segments": 9, "numbers": 16, "widths": 16, "firsts": 17, "lows": 17}
    tables = [counts.new_empty((blocks, width)) for width in columns.values()]
    tables.append(counts.new_empty(blocks, dtype=torch.int32))
    vectors = Vectors(*tables)
    vector_kernel[(-(-blocks // LANES),)](counts, sums, sizes, modes, *vectors, error, blocks, LANES, num_warps=WARPS)
    return vectors


@kernel()
def vector_of(firsts: tl.tensor, gap: tl.tensor) -> Any:
    """Vector of each gap of a block, int64; `firsts` points to the block's row."""
    found = gap * 0
    for v in tl.static_range(1, 16):
        found -= (tl.load(firsts + v) - 1 - gap) >> 63  # gap >= firsts[v], without a predicate
    return found


@kernel()
def class_of_change(begins: tl.tensor, i: tl.tensor) -> Any:
    """Class of each change of a block, int64; `begins` points to the block's row."""
    found = i * 0
    for c in tl.static_range(1, 8):
        found -= (tl.load(begins + c) - 1 - i) >> 63  # i >= begins[c]
    return found
