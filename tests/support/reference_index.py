"""Reference twin of the suffix index: the same table in plain Python, and a search without any table."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slipstream.core.drafter.arrays import BUCKET
from slipstream.core.drafter.contexts import KEEP


@dataclass
class ReferenceTable:
    """Buckets of (tag, position), latest first."""

    buckets: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    displaced: int = 0

    def insert(self, bucket: int, tag: int, position: int) -> None:
        slots = self.buckets.setdefault(bucket, [])
        same = [i for i, slot in enumerate(slots) if slot[0] == tag]
        if len(same) >= KEEP:
            del slots[same[KEEP - 1]]
        elif len(slots) == BUCKET:
            slots.pop()
            self.displaced += 1
        slots.insert(0, (tag, position))


def occurrences(texts: list[NDArray[np.int32]], context: NDArray[np.int32]) -> list[tuple[int, int]]:
    """Every (text, index of the next token) where `context` is followed by a known token, by brute force."""
    n = context.size
    return [
        (number, at)
        for number, text in enumerate(texts)
        for at in range(n, text.size)
        if np.array_equal(text[at - n : at], context)
    ]
