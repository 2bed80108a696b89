"""What ran where and when: bars of a run, for charts and traces."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slipstream.core.charts import Span
from slipstream.core.graph.compiled.model import GANG, Floats
from slipstream.core.graph.interference import LOADS
from slipstream.core.graph.workload import Workload

GANG_NAMES = ("log-prob", "train", "sync")


class Bar(msgspec.Struct, frozen=True):
    """One stretch of one sub-stage on one worker."""

    pipeline: str
    worker: int
    kind: str
    """decode, log-prob, train or sync."""
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


def spans(found: Sequence[Bar]) -> list[Span]:
    """Return the bars for charts and traces: a row a worker, a group a pipeline, rollouts above gang stages."""
    return [
        Span(
            row=f"worker {bar.worker}",
            group=bar.pipeline,
            name=f"{bar.kind} {bar.step}",
            start=bar.start,
            end=bar.end,
            lane=int(bar.load is None),
            strength=1.0 if bar.load is None else 0.35 + 0.65 * bar.load,
            details={"rate": round(bar.rate, 3), **({} if bar.load is None else {"load": round(bar.load, 3)})},
        )
        for bar in sorted(found, key=lambda bar: (bar.worker, bar.pipeline))
    ]
