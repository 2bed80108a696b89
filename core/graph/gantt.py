"""What ran where and when: bars of a run, as a table for charts and as a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from slipstream.core.graph.compiled.model import GANG, Floats
from slipstream.core.graph.interference import LOADS
from slipstream.core.graph.workload import Workload

GANG_NAMES = ("log-prob", "train", "sync")


class Bar(msgspec.Struct, frozen=True):
    """One stretch of one sub-stage on one worker."""

    pipeline: str
    worker: int
    kind: str
    """decode, log-prob, train or sync; of real runs, what the framework calls it."""
    step: int
    start: float
    end: float
    load: float | None
    """Load u in the middle of its class, for decode."""
    rate: float
    """Mean progress a second; below 1 beside something else."""


def bars(workload: Workload, log: Floats) -> list[Bar]:
    """Return the bars of a run's log, neighbouring rows of one sub-stage as one.

    Args:
        log: float64[n, 7]: pipeline, worker, kind, step, start, end, rate.
    """
    open_rows: dict[tuple[int, int], list[float]] = {}
    found: list[Bar] = []

    def close(key: tuple[int, int], row: list[float]) -> None:
        kind = int(row[0])
        found.append(
            Bar(
                pipeline=workload.pipelines[key[0]].name,
                worker=key[1],
                kind="decode" if kind < GANG else GANG_NAMES[kind - GANG],
                step=int(row[1]),
                start=row[2],
                end=row[3],
                load=LOADS[kind] if kind < GANG else None,
                rate=row[4] / (row[3] - row[2]),
            )
        )

    for p, w, kind, step, start, end, rate in log.tolist():
        # a pipeline has a rollout and a gang stage of its own on a worker at most
        key = (2 * int(p) + (kind >= GANG), int(w))
        row = open_rows.get(key)
        if row is not None and row[0] == kind and row[1] == step and abs(row[3] - start) < 1e-9:
            row[3] = end
            row[4] += rate * (end - start)
            continue
        if row is not None:
            close((key[0] // 2, key[1]), row)
        open_rows[key] = [kind, step, start, end, rate * (end - start)]
    for key, row in open_rows.items():
        close((key[0] // 2, key[1]), row)
    return sorted(found, key=lambda bar: (bar.start, bar.worker))


def stage_bars(events: Iterable[Mapping[str, Any]]) -> list[Bar]:
    """Return the bars of real runs from their event logs (kinds ``stage`` and ``placed``), from the first stage on.

    A worker is a device that some run has; runs on the same device share its row.
    """
    devices: dict[str, list[str]] = {}
    stages: list[Mapping[str, Any]] = []
    for event in events:
        if event["kind"] == "placed":
            devices[event["pipeline"]] = event["devices"]
        elif event["kind"] == "stage" and event["pipeline"] in devices:
            stages.append(event)
    names = sorted({name for each in devices.values() for name in each})
    start = min((each["began"] for each in stages), default=0.0)
    found = [
        Bar(
            pipeline=each["pipeline"],
            worker=names.index(name),
            kind=each["stage"],
            step=each["step"],
            start=each["began"] - start,
            end=each["began"] - start + each["seconds"],
            load=None,
            rate=1.0,
        )
        for each in stages
        for name in devices[each["pipeline"]]
    ]
    return sorted(found, key=lambda bar: (bar.start, bar.worker))


def perfetto(found: list[Bar]) -> bytes:
    """Return a trace in the Chrome JSON format, which ui.perfetto.dev and chrome://tracing open: a process a worker, a
    thread a pipeline, microseconds."""
    pipelines = sorted({bar.pipeline for bar in found})
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": worker, "args": {"name": f"worker {worker}"}}
        for worker in sorted({bar.worker for bar in found})
    ]
    for worker in sorted({bar.worker for bar in found}):
        events += [
            {"ph": "M", "name": "thread_name", "pid": worker, "tid": i, "args": {"name": name}}
            for i, name in enumerate(pipelines)
        ]
    events += [
        {
            "ph": "X",
            "name": f"{bar.kind} {bar.step}",
            "cat": bar.kind,
            "pid": bar.worker,
            "tid": pipelines.index(bar.pipeline),
            "ts": bar.start * 1e6,
            "dur": (bar.end - bar.start) * 1e6,
            "args": {"rate": round(bar.rate, 3), **({} if bar.load is None else {"load": round(bar.load, 3)})},
        }
        for bar in found
    ]
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})
