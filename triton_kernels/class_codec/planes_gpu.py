"""Bits and classes on a GPU: what the kernels of encoder and decoder share."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import Any

import triton.language as tl

from ..bits_gpu import store_bits
from ..kernel import kernel
from . import planes

TRUNCATED = tl.constexpr(planes.TRUNCATED)
TRAILING = tl.constexpr(planes.TRAILING)
CLASSES = tl.constexpr(planes.CLASSES)
COUNT = tl.constexpr(planes.COUNT)
VECTOR = tl.constexpr(planes.VECTOR)
WIDE = tl.constexpr(planes.WIDE)
TYPE = tl.constexpr(planes.TYPE)
VARINT = tl.constexpr(planes.VARINT)

STEPS, VALUES, COPY = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""Modes of a block."""

_ALTERNATE = tl.constexpr(0x00FF00FF00FF00FF)


@kernel()
def low_width(n: tl.tensor, listed: tl.tensor) -> Any:
    """Low bits of a gap in a bit vector of n < 2**24 bits, int64 (`reference.BitVector.low`)."""
    scaled, limit = 266 * listed, 64 * (2 * n - listed)
    low = listed * 0
    for _ in range(24):
        low += ((scaled > 0) & (scaled <= limit)).to(tl.int64)
        scaled = scaled * 2
    return low


@kernel()
def monotone(bits: tl.tensor, word: tl.constexpr) -> Any:
    """`reference.monotone` of unsigned bits, int64."""
    negative = bits >> (word - 1)
    return (bits ^ -negative) + (negative << (word - 1))


@kernel()
def bit_length(number: tl.tensor) -> Any:
    """Bits of numbers in 0..2**32 - 1, 0 for 0; int64."""
    length = number * 0
    for step in tl.static_range(5):
        width = 16 >> step
        more = (number >> width) > 0
        length += tl.where(more, width, 0)
        number = tl.where(more, number >> width, number)
    return length + (number > 0).to(tl.int64)


@kernel()
def varint_size(number: tl.tensor) -> Any:
    """Bytes of a varint below 2**28; int64."""
    one = (number * 0 + 1).to(tl.int64)
    return one + (number >= 1 << 7).to(tl.int64) + (number >= 1 << 14).to(tl.int64) + (number >= 1 << 21).to(tl.int64)


@kernel()
def store_varint(words: tl.tensor, at: tl.tensor, number: tl.tensor, live: tl.tensor) -> Any:
    """Write varints at byte `at` of zeroed int32 words; returns the bytes behind them."""
    size = varint_size(number)
    value = at * 0
    for i in tl.static_range(4):
        byte = (number >> (7 * i)) & 127
        byte = tl.where(size > i + 1, byte | 128, byte)
        value |= tl.where(size > i, byte, 0) << (8 * i)
    store_bits(words, 8 * at, value, 8 * size, live)
    return tl.where(live, at + size, at)


@kernel()
def load_varint(data: tl.tensor, at: tl.tensor, stop: tl.tensor, live: tl.tensor) -> Any:
    """Read a varint of each live lane at byte `at`: (number, byte behind it, error or 0)."""
    number, going, error = at * 0, live, at * 0
    for i in tl.static_range(4):
        here = going & (at < stop)
        error = tl.where(going & (at >= stop), TRUNCATED, error)
        byte = tl.load(data + at, mask=here, other=0).to(tl.int64)
        number |= (byte & 127) << (7 * i)
        at += here.to(tl.int64)
        going = here & (byte >= 128)
        if i > 0:
            error = tl.where(here & (byte == 0), VARINT, error)
    return number, at, tl.where(going, VARINT, error)


@kernel()
def class_of(bits: tl.tensor, shift: tl.tensor, field: tl.tensor, edges: tl.tensor, classes: tl.constexpr) -> Any:
    """Class of each element, int32: the number of edges (a byte each of `edges`) below its exponent byte."""
    byte = (bits.to(tl.int32) >> shift.to(tl.int32)) & field.to(tl.int32)
    found = byte * 0
    for c in tl.static_range(classes - 1):
        edge = ((edges >> (8 * c)) & 255).to(tl.int32)
        found -= (edge - byte) >> 31  # comparisons would take more predicates than there are
    return found


@kernel()
def split_counts(counts: tl.tensor) -> Any:
    """Eight counts of 8 bits as those of even and of odd classes, 16 bits each."""
    return counts & _ALTERNATE, (counts >> 8) & _ALTERNATE


@kernel()
def rank_in_class(c: tl.tensor, counted: tl.tensor, even: tl.tensor, odd: tl.tensor) -> Any:
    """Rank of each counted element of a [rows, 32] tile among those of its class, int32, and the counts behind it.

    In a row, an int64 counts eight classes with 8 bits each; over rows and tiles, two count four each with 16 bits
    (even, odd: the counts so far, below 2**15).
    """
    shift = (8 * c).to(tl.int64)
    one = counted.to(tl.int64) << shift
    in_row = ((tl.cumsum(one, 1) - one) >> shift) & 255
    even_rows, odd_rows = split_counts(tl.sum(one, 1))
    even_before = even + tl.cumsum(even_rows, 0) - even_rows
    odd_before = odd + tl.cumsum(odd_rows, 0) - odd_rows
    before = tl.where((c & 1) != 0, odd_before[:, None], even_before[:, None])
    before = (before >> (16 * (c >> 1)).to(tl.int64)) & 0xFFFF
    return (in_row + before).to(tl.int32), even + tl.sum(even_rows, 0), odd + tl.sum(odd_rows, 0)


@kernel()
def unpack_counts(even: tl.tensor, odd: tl.tensor) -> Any:
    """int32[8] counts out of two int64 that hold those of even and of odd classes."""
    c = tl.arange(0, 8)
    return ((tl.where((c & 1) != 0, odd, even) >> (16 * (c >> 1)).to(tl.int64)) & 0xFFFF).to(tl.int32)
