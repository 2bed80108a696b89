"""Bit planes read a word at a time on the host: what the decoders of both block formats share."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from .jit import jit
from .words import popcount, trailing_zeros

SLACK = 8
"""Entries that `list_ones` may write behind the last place, and bytes that `word_at` may read behind a plane."""


@intrinsic  # type: ignore[untyped-decorator]
def word_at(typingctx: Any, data: Any, at: Any) -> Any:
    """The eight bytes of a uint8 array from `at` on as a little-endian uint64; they must be inside."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        array = context.make_array(kind)(context, builder, args[0])
        place = cgutils.get_item_pointer(context, builder, kind, array, [args[1]], wraparound=False)
        word = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(data, types.intp), codegen


@jit
def bits_at(plane: Any, at: int) -> Any:
    """The bits of a uint8 plane from bit `at` on as a uint64, of which at least the lowest 57 are right."""
    return word_at(plane, at >> 3) >> np.uint64(at & 7)


def padded(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A copy with `SLACK` zeros behind it, so that a plane at its end can be read a word at a time."""
    plane = np.empty(data.size + SLACK, np.uint8)
    plane[: data.size] = data
    plane[data.size :] = 0
    return plane


@jit
def plane_word(plane: Any, at: int, stop: int) -> Any:
    """`word_at`, with zeros for what is behind `stop`."""
    word = word_at(plane, at)
    return word if at + 8 <= stop else word & ((np.uint64(1) << np.uint64(8 * (stop - at))) - np.uint64(1))


@jit
def count_ones(plane: Any, start: int, stop: int) -> int:
    """Set bits of plane[start:stop]."""
    found = 0
    for at in range(start, stop, 8):
        found += popcount(plane_word(plane, at, stop))
    return found


@jit
def list_ones(plane: Any, start: int, stop: int, places: Any) -> None:
    """Bit numbers of the set bits of plane[start:stop], ascending, from 0.

    for each word: for each set bit: append it

    Eight at a time, wanted or not, as a loop that ends where the bits do is predicted wrongly once a word; so `places`
    has room for `SLACK` more than `count_ones`.
    """
    first = 0
    for at in range(start, stop, 8):
        word, base = plane_word(plane, at, stop), 8 * (at - start)
        ones = popcount(word)
        for j in range(0, ones, 8):
            for k in range(8):
                places[np.uint64(first + j + k)] = base + trailing_zeros(word)
                word &= word - np.uint64(1)
        first += ones
