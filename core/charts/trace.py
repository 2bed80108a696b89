"""Traces in the Chrome JSON format, which ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from slipstream.core.charts.spans import Span


class Counter(msgspec.Struct, frozen=True):
    """One value of a quantity that changes over time."""

    name: str
    seconds: float
    values: dict[str, float]
    """One line each, in the same track."""


def perfetto(spans: Sequence[Span], counters: Iterable[Counter] = ()) -> bytes:
    """Return the trace: a process a row, a thread a group, times in microseconds."""
    rows = list(dict.fromkeys(span.row for span in spans))
    groups = list(dict.fromkeys(span.group for span in spans))
    events: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": row}})
        used = {span.group for span in spans if span.row == row}
        events += [
            {"ph": "M", "name": "thread_name", "pid": number, "tid": thread, "args": {"name": group}}
            for thread, group in enumerate(groups)
            if group in used
        ]
    events += [
        {
            "ph": "X",
            "name": span.name,
            "cat": span.group,
            "pid": rows.index(span.row),
            "tid": groups.index(span.group),
            "ts": span.start * 1e6,
            "dur": (span.end - span.start) * 1e6,
            "args": span.details,
        }
        for span in spans
    ]
    events += [
        {"ph": "C", "name": each.name, "pid": len(rows), "tid": 0, "ts": each.seconds * 1e6, "args": each.values}
        for each in counters
    ]
    if len(events) and events[-1]["ph"] == "C":
        events.append({"ph": "M", "name": "process_name", "pid": len(rows), "args": {"name": "counters"}})
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})
