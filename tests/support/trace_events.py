"""What the Trace Event format asks of a file, as far as slipstream writes it."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any

_METADATA = {"process_name", "thread_name"}


def checked(trace: bytes | str) -> list[dict[str, Any]]:
    """Return the events of a trace in the JSON object form, after checking every one of them."""
    content = json.loads(trace)
    assert content["displayTimeUnit"] in ("ms", "ns")
    events = content["traceEvents"]
    assert isinstance(events, list)
    names: dict[tuple[str, int, int], str] = {}
    slices: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        assert isinstance(event["name"], str), event
        assert event["name"], event
        assert type(event["pid"]) is int, event
        assert type(event["tid"]) is int, event
        assert _number(event["ts"]), event
        assert event["ts"] >= 0, event
        if event["ph"] == "M":
            assert event["name"] in _METADATA, event
            place = (event["name"], event["pid"], event["tid"])
            assert place not in names, f"named twice: {event}"
            names[place] = event["args"]["name"]
        elif event["ph"] == "X":
            assert _number(event["dur"]), event
            assert event["dur"] >= 0, event
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            assert event["args"], event
            assert all(map(_number, event["args"].values())), event
        else:
            raise AssertionError(f"a phase that slipstream does not write: {event}")
    for process, thread in slices:
        assert names["thread_name", process, thread]
    for process in {event["pid"] for event in events}:
        assert names["process_name", process, 0]
    threads = [thread for _, thread in slices]
    assert len(set(threads)) == len(threads), "a thread's number in two processes"
    for place, found in slices.items():
        assert not crossing(found), f"slices of {place} neither nest nor follow each other: {crossing(found)}"
    return events


def crossing(slices: list[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of (start, end) that overlap without one being inside the other."""
    found = []
    open_slices: list[tuple[int, int]] = []
    for start, end in sorted(slices, key=lambda each: (each[0], -each[1])):
        while open_slices and open_slices[-1][1] <= start:
            open_slices.pop()
        if open_slices and open_slices[-1][1] < end:
            found.append((open_slices[-1], (start, end)))
        open_slices.append((start, end))
    return found


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
