"""Bits at any place of a message, and order inside a tile: device functions that several codecs share."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import Any

import triton.language as tl

from .kernel import kernel


@kernel()
def report(error: tl.tensor, code: tl.tensor) -> None:
    """error = max(error, largest code of the lanes); 0 is none."""
    worst = tl.max(code.to(tl.int32), 0)
    if worst > 0:
        tl.atomic_max(error, worst)


@kernel()
def load_bits(
    data: tl.tensor, at: tl.tensor, width: tl.tensor, stop: tl.tensor, live: tl.tensor, most: tl.constexpr
) -> Any:
    """The `width` (at most 8 * most - 7) bits from bit `at` of `data` on, int64; zeros from byte `stop` on."""
    first = at >> 3
    found = at * 0
    for i in tl.static_range(most):
        inside = live & (first + i < stop) & ((at & 7) + width > 8 * i)
        found |= tl.load(data + first + i, mask=inside, other=0).to(tl.int64) << (8 * i)
    return (found >> (at & 7)) & (((at * 0 + 1) << width) - 1)


@kernel()
def store_bits(words: tl.tensor, at: tl.tensor, value: tl.tensor, width: tl.tensor, live: tl.tensor) -> None:
    """Set the `width` (at most 32) zero bits from bit `at` of int32 words on to `value`, and nothing else."""
    shift = at & 31
    kept = value << shift
    here = live & (width > 0)
    tl.atomic_or(words + (at >> 5), kept.to(tl.int32), mask=here, sem="relaxed")
    tl.atomic_or(words + (at >> 5) + 1, (kept >> 32).to(tl.int32), mask=here & (shift + width > 32), sem="relaxed")


@kernel()
def unsigned(bits: tl.tensor, word: tl.constexpr) -> Any:
    """Elements as the int64 of the same unsigned value (64-bit ones as they are)."""
    wide = bits.to(tl.int64)
    if word < 64:
        wide = wide & ((1 << word) - 1)
    return wide


@kernel()
def square(start: tl.tensor, tile: tl.constexpr) -> Any:
    """The numbers start .. start + tile - 1 as rows of 32: a scan along a row stays inside a warp."""
    rows: tl.constexpr = tile // 32
    return start + (tl.arange(0, rows) * 32)[:, None] + tl.arange(0, 32)[None, :]


@kernel()
def rank_flags(flag: tl.tensor) -> Any:
    """Of an int32 [rows, 32] of zeros and ones: how many ones are before each, and how many there are."""
    rows = tl.sum(flag, 1)
    return tl.cumsum(flag, 1) - flag + (tl.cumsum(rows, 0) - rows)[:, None], tl.sum(rows, 0)
