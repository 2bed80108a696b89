"""Packed changes spelled out, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import jit
from .packed import RUN


@jit
def monotone(bits: Any, word: int) -> Any:
    """`class_codec.reference.monotone` of an element of `word` bits, without a branch: signs cannot be predicted."""
    negative = bits >> (word - 1)
    return (bits ^ -negative) + (negative << (word - 1))


@jit
def expand(bases: Any, starts: Any, offsets: Any, first: int, stop: int, out: Any) -> None:
    """Positions of the changes [first, stop)."""
    for r in range(bases.size):
        base = bases[r]
        for i in range(max(starts[r], first), min(starts[r + 1], stop)):
            out[i - first] = base + offsets[i]


@jit
def changes_below(bases: Any, starts: Any, offsets: Any, position: int) -> int:
    """How many changes are below `position`, on top of starts[0]."""
    r = np.searchsorted(bases, position, side="right") - 1
    if r < 0:
        return int(starts[0])
    within = position - bases[r]
    run = offsets[starts[r] : starts[r + 1]]
    return int(starts[r] + (run.size if within >= RUN else np.searchsorted(run, np.uint16(within))))


@jit
def bisect(bases: Any, starts: Any, offsets: Any, start: int, stop: int) -> tuple[int, int]:
    """The changes of elements [start, stop)."""
    return changes_below(bases, starts, offsets, start), changes_below(bases, starts, offsets, stop)


@jit
def resolve(starts: Any, payload: Any, moved: Any, old: Any, out: Any) -> int:
    """New elements from the old ones; returns how many would move out of their type.

    out = payload, or in a moved run bits_of(monotone(old) + payload)
    """
    word = 8 * out.itemsize
    sign = 1 << (word - 1)
    bad = 0
    for r in range(moved.size):
        if moved[r]:
            for i in range(starts[r], starts[r + 1]):
                number = monotone(np.int64(old[i]), word) + payload[i]
                bad += (number < -sign) | (number >= sign)
                out[i] = number if number >= 0 else sign - 1 - number
        else:
            for i in range(starts[r], starts[r + 1]):
                out[i] = payload[i]
    return bad
