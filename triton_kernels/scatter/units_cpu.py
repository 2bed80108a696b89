"""The compiled loops over parts of `UnitsApplied`: one part is the changes of a unit that lie in one box."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..jit import jit
from ..packed_cpu import bisect
from ..prefetch import array_at
from .cpu import write_packed


@jit
def list_parts(first: Any, table: Any, units: Any, runs: Any, bases: Any, starts: Any, offsets: Any, most: int) -> Any:
    """int64[parts, 5]: unit, row, first change, one behind the last, where old values go; `most` changes at most."""
    parts, count, at = np.empty((units.size, 5), np.int64), 0, 0
    for i in range(units.size):
        begin, end = runs[i], runs[i + 1]
        for row in range(first[units[i]], first[units[i] + 1]):
            mine = bases[begin:end], starts[begin : end + 1], offsets
            start, stop = bisect(*mine, table[row, 2], table[row, 3])
            while start < stop:
                if count == parts.shape[0]:
                    grown = np.empty((2 * count, 5), np.int64)
                    grown[:count] = parts
                    parts = grown
                last = min(stop, start + most)
                parts[count, 0], parts[count, 1], parts[count, 2], parts[count, 3] = i, row, start, last
                parts[count, 4] = at
                at += last - start
                start = last
                count += 1
    return parts[:count]


@jit
def write_parts(
    parts: Any,
    table: Any,
    runs: Any,
    bases: Any,
    starts: Any,
    offsets: Any,
    payload: Any,
    moved: Any,
    old_values: Any,
    done: Any,
    deltas: Any,
    begin: int,
    end: int,
) -> int:
    """Write parts [begin, end) and note that they are; returns how many elements would move out of their type.

    The rows hold addresses of storages, which were checked against their boxes; changes are inside the boxes.
    """
    bad = 0
    for p in range(begin, end):
        i, row, first, stop = parts[p, 0], parts[p, 1], parts[p, 2], parts[p, 3]
        storage = array_at(table[row, 0], table[row, 1], old_values)
        mine = slice(runs[i], runs[i + 1])
        delta, wrong = write_packed(
            storage,
            bases[mine],
            starts[runs[i] : runs[i + 1] + 1],
            offsets,
            payload,
            moved[mine],
            table[row, 4],
            first,
            stop,
            old_values,
            parts[p, 4],
        )
        done[p] = True
        deltas[i] += delta
        bad += wrong
    return bad


@jit
def undo_parts(
    parts: Any, table: Any, runs: Any, bases: Any, starts: Any, offsets: Any, old_values: Any, done: Any
) -> None:
    """Put the old values of the parts that are done back, last part first."""
    for p in range(parts.shape[0] - 1, -1, -1):
        if not done[p]:
            continue
        i, row, first, stop, at = parts[p, 0], parts[p, 1], parts[p, 2], parts[p, 3], parts[p, 4]
        storage = array_at(table[row, 0], table[row, 1], old_values)
        for r in range(runs[i], runs[i + 1]):
            base = bases[r] + table[row, 4]
            for n in range(max(starts[r], first), min(starts[r + 1], stop)):
                storage[base + offsets[n]] = old_values[at + n - first]
