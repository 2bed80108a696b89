"""Runs a scheduler against a cluster that only exists in memory: what differs from a real run is clock and workers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from slipstream.core.graph.compiled.advance import advance
from slipstream.core.graph.compiled.apply import apply_all
from slipstream.core.graph.compiled.model import Actions, Curves, Flag, Floats, Ints, State, World, new_state
from slipstream.core.graph.errors import GraphError
from slipstream.core.graph.forecast import Forecaster
from slipstream.core.graph.schedulers import GREEDY_RULE, Scheduler
from slipstream.core.graph.static_plans import exclusive_seconds
from slipstream.core.graph.view import WorkloadView
from slipstream.core.graph.workload import Workload
from slipstream.core.graph.world import ALL_ACTIONS, build_world

_LOG_ROWS = 400_000


@dataclass
class Run:
    """What came out of a simulation."""

    seconds: float
    """Until the last pipeline ended."""
    ends: Floats
    """float64[P]: when each pipeline ended."""
    serial: float
    """Seconds of all pipelines one after another, in the framework's own order."""
    latency: Floats
    """float64[P]: each pipeline's end over its exclusive time."""
    decisions: int
    planning: list[float] = field(default_factory=list)
    """Seconds that each decision took to plan, thread time."""
    log: Floats = field(default_factory=lambda: np.zeros((0, 7)))
    """float64[n, 7]: pipeline, worker, kind, step, start, end, rate."""
    actions: list[tuple[float, tuple[int, int, int]]] = field(default_factory=list)
    """Clock and (kind, pipeline, argument) of every action that was done."""

    @property
    def speedup(self) -> float:
        """Serial time over this one."""
        return self.serial / self.seconds


def simulate(
    workload: Workload,
    scheduler: Scheduler,
    forecaster: Forecaster,
    *,
    allowed: frozenset[Flag] = ALL_ACTIONS,
    true_rates: Floats | None = None,
    believed_rates: Floats | None = None,
    group: int = 1,
    preferred: int = 0,
    record: bool = False,
) -> Run:
    """Run a workload to its end.

    Args:
        forecaster: what the scheduler is told about lengths.
        true_rates: the slowdown table; None for the workload's own.
        believed_rates: the slowdown table as the scheduler knows it; None for the true one.
        group: workers that the scheduler plans as one.
        record: keep a log for Gantt charts and traces.

    Raises:
        GraphError: nothing runs although not everything has ended, and greedy cannot help: a pipeline needs more memory
            than a worker has.
    """
    lengths = [pipeline.step_lengths() for pipeline in workload.pipelines]
    expected = forecaster.start(workload)
    steps = max(len(each) for each in lengths)
    world, curves = build_world(
        workload, lengths, expected.expected, allowed=allowed, rates=true_rates, merged_steps=steps
    )
    state = new_state(len(workload.pipelines), workload.workers)
    view = WorkloadView(
        workload,
        expected,
        group=group,
        allowed=allowed,
        rates=true_rates if believed_rates is None else believed_rates,
        preferred=preferred,
    )
    alone = exclusive_seconds(workload, lengths)
    occupied = np.zeros((workload.workers, 2), np.int64)
    log = np.zeros((_LOG_ROWS if record else 0, 7))
    logged = np.zeros(1, np.int64)
    run = Run(0.0, state.finished, sum(alone), np.zeros(0), 0)
    while (state.finished < 0).any():
        began = time.thread_time()
        view.observe(curves, state, forecaster.now(state))
        actions = scheduler.decide(view)
        run.planning.append(time.thread_time() - began)
        run.decisions += 1
        _do(world, curves, state, occupied, actions, run)
        if not advance(world, curves, state, occupied, log, logged):
            # actions that were planned for groups of workers need not be possible on single ones
            view.observe(curves, state, forecaster.now(state))
            _do(world, curves, state, occupied, GREEDY_RULE.decide(view), run)
            if not advance(world, curves, state, occupied, log, logged):
                raise GraphError(_stuck(workload, state))
    run.seconds = float(state.finished.max())
    run.latency = state.finished / np.array(alone)
    run.log = log[: logged[0]]
    return run


def _do(world: World, curves: Curves, state: State, occupied: Ints, actions: Actions, run: Run) -> None:
    clock = float(state.clock[0])
    for row in actions:
        if apply_all(world, curves, state, occupied, row.reshape(1, 3)):
            run.actions.append((clock, (int(row[0]), int(row[1]), int(row[2]))))


def _stuck(workload: Workload, state: State) -> str:
    names = [pipeline.name for p, pipeline in enumerate(workload.pipelines) if state.finished[p] < 0]
    return (
        f"workload {workload.name!r}: expected something to run at {state.clock[0]:.3f} s, found {', '.join(names)} "
        "waiting for each other; the scheduler returned no action that is possible"
    )
