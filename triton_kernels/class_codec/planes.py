"""Bit planes on the host: arrays of 64-bit words in which every symbol finds its place by a bit offset."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..jit import jit

# What a coded block says when it is wrong; 0 is right.
TRUNCATED, TRAILING, CLASSES, COUNT, VECTOR, WIDE, TYPE, VARINT = range(1, 9)
ERRORS = {
    TRUNCATED: "it is truncated",
    TRAILING: "it has trailing bytes",
    CLASSES: "its classes are not those of the map",
    COUNT: "it counts more changes than elements",
    VECTOR: "a bit vector is longer or shorter than it says",
    WIDE: "a magnitude is wider than an element",
    TYPE: "a value moves out of its type: the old value is not the encoder's, or the block is damaged",
    VARINT: "a varint is too long",
}


@jit
def put_bits(words: Any, at: int, value: Any, width: int) -> None:
    """Set `width` (at most 32) zero bits from bit `at` on to the low bits of `value`."""
    if width == 0:
        return
    word, shift = at >> 6, np.uint64(at & 63)
    kept = np.uint64(value) & ((np.uint64(1) << np.uint64(width)) - np.uint64(1))
    words[word] |= kept << shift
    if (at & 63) + width > 64:
        words[word + 1] |= kept >> (np.uint64(64) - shift)


@jit
def low_width(n: int, listed: int) -> int:
    """Low bits of a gap in a bit vector of `n` bits with `listed` gaps (`reference.BitVector.low`)."""
    scaled, limit, low = 266 * listed, 64 * (2 * n - listed), 0
    while 0 < scaled <= limit:
        scaled *= 2
        low += 1
    return low


@jit
def varint_size(number: int) -> int:
    """Bytes of a varint."""
    size = 1
    while number >= 128:
        number >>= 7
        size += 1
    return size


@jit
def put_varint(out: Any, at: int, number: int) -> int:
    """Write a varint; return where it ends."""
    while number >= 128:
        out[at] = (number & 127) | 128
        number >>= 7
        at += 1
    out[at] = number
    return at + 1


@jit
def get_varint(data: Any, at: int, stop: int) -> tuple[int, int]:
    """The varint at `at`, of at most four bytes, and where it ends; -error instead of a number."""
    number: Any = 0
    for shift in range(0, 28, 7):
        if at >= stop:
            return -TRUNCATED, at
        byte = np.int64(data[at])
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            if shift > 0 and byte == 0:
                break
            return number, at
    return -VARINT, at


@jit
def list_gaps(ones: Any, first: int, count: int, n: int, gaps: Any, at: int) -> int:
    """Gaps of the bit vector whose ones are ones[first:first + count]; return where they end in `gaps`."""
    if 2 * count <= n:
        last = -1
        for i in range(first, first + count):
            gaps[at] = ones[i] - last - 1
            last = ones[i]
            at += 1
        return at
    last, zero = -1, -1  # the last one, the last zero
    for i in range(first, first + count + 1):
        one = ones[i] if i < first + count else n
        for place in range(last + 1, one):
            gaps[at] = place - zero - 1
            zero = place
            at += 1
        last = one
    return at


@jit
def list_string_gaps(lengths: Any, first: int, count: int, total: int, gaps: Any, at: int) -> int:
    """Gaps of the bit vector that holds each length as that many zeros and a one; `total` is their sum."""
    if count <= total:
        for i in range(first, first + count):
            gaps[at] = lengths[i]
            at += 1
        return at
    skipped = 0
    for i in range(first, first + count):
        for _ in range(np.int64(lengths[i])):
            gaps[at] = skipped
            skipped = 0
            at += 1
        skipped += 1
    return at
