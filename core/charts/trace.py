"""Traces in the Trace Event format (JSON), which ui.perfetto.dev and chrome://tracing open.

Source: the Trace Event Format document of the Chrome project (``ph`` X, C and M).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from slipstream.core.charts.spans import Span


class Counter(msgspec.Struct, frozen=True):
    """One value of a quantity that changes over time."""

    name: str
    seconds: float
    values: dict[str, float]
    """One line each, in the same track; values that are not finite are left out."""


def perfetto(spans: Sequence[Span], counters: Iterable[Counter] = ()) -> bytes:
    """Return the trace: a process a row, a thread a group, times in microseconds.

    Slices of one thread have to nest, so spans of a group that overlap otherwise get further threads, whose numbers are
    used once in the trace. Every event has ``ph``, ``name``, ``ts``, ``pid`` and ``tid``.
    """
    rows = {row: number for number, row in enumerate(dict.fromkeys(span.row for span in spans), 1)}
    numbers = itertools.count(1)
    names: list[dict[str, Any]] = [_named("process", row, number, 0) for row, number in rows.items()]
    slices: list[dict[str, Any]] = []
    groups: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        groups.setdefault((span.row, span.group), []).append(span)
    for (row, group), members in groups.items():
        for place, lane in enumerate(_lanes(members), 1):
            thread = next(numbers)
            names.append(_named("thread", group if place == 1 else f"{group} ({place})", rows[row], thread))
            slices += [_slice(span, rows[row], thread) for span in lane]
    values = [_value(each, len(rows) + 1) for each in counters]
    if values:
        names.append(_named("process", "counters", len(rows) + 1, 0))
    events = [*names, *slices, *(value for value in values if value["args"])]
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})


def _lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """Distribute spans so that any two of one lane are apart or one lies within the other."""
    lanes: list[tuple[list[Span], list[int]]] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        start, end = _microseconds(span.start), _microseconds(span.end)
        for lane, ends in lanes:  # ends: of the lane's spans that are still open
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                lane.append(span)
                ends.append(end)
                break
        else:
            lanes.append(([span], [end]))
    return [lane for lane, _ in lanes]


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def _slice(span: Span, process: int, thread: int) -> dict[str, Any]:
    start = _microseconds(span.start)
    return {
        "ph": "X",
        "name": span.name,
        "cat": span.group,
        "pid": process,
        "tid": thread,
        "ts": start,
        "dur": max(0, _microseconds(span.end) - start),
        "args": span.details,
    }


def _value(counter: Counter, process: int) -> dict[str, Any]:
    values = {name: value for name, value in counter.values.items() if math.isfinite(value)}
    return {
        "ph": "C",
        "name": counter.name,
        "pid": process,
        "tid": 0,
        "ts": _microseconds(counter.seconds),
        "args": values,
    }


def _named(what: str, name: str, process: int, thread: int) -> dict[str, Any]:
    return {"ph": "M", "name": f"{what}_name", "pid": process, "tid": thread, "ts": 0, "args": {"name": name}}
