"""Every way to run a workload, side by side."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np

from slipstream.core.graph.forecast import KnownLengths
from slipstream.core.graph.launch import GRAPH_NAMES, group_size, options
from slipstream.core.graph.schedulers import ROUND_ROBIN_RULE, THRESHOLD_RULE
from slipstream.core.graph.simulator import Run, simulate
from slipstream.core.graph.static_plans import exclusive_seconds
from slipstream.core.graph.workload import Workload

ASSUMED = (
    "simulated: decode and prefill costs, stage seconds, memory floors and the interference table are taken from the "
    "workload and from assumptions (docs/graph.md), not measured here"
)

PROFILED = (
    "simulated: costs, stage seconds and memory floors are taken from the workload, slowdowns from a profile of a "
    "stand-in model, and from assumptions (docs/graph.md) where it has none"
)


class Option(msgspec.Struct, frozen=True):
    """One way to run a workload."""

    name: str
    seconds: float
    """Until the last pipeline ends."""
    over_serial: float
    """Serial seconds over these."""
    mean_latency: float
    """Mean over pipelines of the end over the pipeline's time with the cluster to itself."""
    worst_latency: float
    planning_ms: float | None = None
    """Median thread time of a decision; None where nothing is decided."""


@dataclass
class Comparison:
    """All options of a workload."""

    workload: str
    options: list[Option]
    best: str
    """What slipstream would run."""
    best_run: Run | None
    """Its simulation with a log; None for a static plan."""
    notes: list[str] = field(default_factory=list)


def compare(workload: Workload) -> Comparison:
    """Simulate every option on the workload's own lengths."""
    forecaster = KnownLengths()
    prediction = forecaster.start(workload)
    alone = np.array(exclusive_seconds(workload, prediction.expected))
    serial = float(alone.sum())
    found: list[Option] = []
    group = group_size(workload.workers)

    def add(name: str, run: Run) -> Run:
        found.append(
            Option(
                name,
                run.seconds,
                run.speedup,
                float(run.latency.mean()),
                float(run.latency.max()),
                1e3 * float(np.median(run.planning)),
            )
        )
        return run

    best_run: Run | None = None
    best = min(choices := list(options(workload, prediction)), key=lambda each: each.seconds)
    for choice in choices:
        if choice.static is not None:
            latency = np.array(choice.static.ends) / alone
            found.append(
                Option(
                    choice.name, choice.seconds, serial / choice.seconds, float(latency.mean()), float(latency.max())
                )
            )
            continue
        assert choice.scheduler is not None
        run = simulate(
            workload, choice.scheduler, forecaster, group=group, preferred=choice.preferred, record=choice is best
        )
        add(choice.name, run)
        if choice is best:
            best_run = run
    for name, rule in (("round robin", ROUND_ROBIN_RULE), ("threshold merge", THRESHOLD_RULE)):
        add(name, simulate(workload, rule, forecaster, group=group))
    notes = [PROFILED if workload.slowdowns else ASSUMED]
    if best.name not in GRAPH_NAMES:
        notes.append(f"{best.name}: workers {', '.join(map(str, best.static.shares if best.static else ()))}")
    return Comparison(workload.name, found, best.name, best_run, notes)
