"""Chooses at launch how a workload is run: every option is simulated on what is known, the best one is taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from slipstream.core.graph.compiled.model import Flag, Floats
from slipstream.core.graph.compiled.policies import GREEDY
from slipstream.core.graph.forecast import Forecaster, KnownLengths
from slipstream.core.graph.schedulers import LookAhead, Rule, Scheduler
from slipstream.core.graph.simulator import simulate
from slipstream.core.graph.static_plans import StaticPlan, static_plans
from slipstream.core.graph.view import Prediction
from slipstream.core.graph.workload import Workload
from slipstream.core.graph.world import ALL_ACTIONS, layout_sizes

GRAPH_NAMES = ("greedy", "look-ahead")
FINE_WORKERS = 16
"""More workers than this are planned in groups of equal ones."""


@dataclass(frozen=True)
class Choice:
    """How to run a workload."""

    name: str
    """A static plan's name, ``greedy`` or ``look-ahead``."""
    seconds: float
    """Predicted."""
    scheduler: Scheduler | None
    """None for a static plan."""
    preferred: int = 0
    """The layout that the greedy rule deals fresh rollouts to."""
    static: StaticPlan | None = None


def group_size(workers: int) -> int:
    """Return how many workers are planned as one."""
    size = 1
    while workers // size > FINE_WORKERS and workers % (2 * size) == 0:
        size *= 2
    return size


def options(
    workload: Workload,
    prediction: Prediction,
    *,
    allowed: frozenset[Flag] = ALL_ACTIONS,
    believed_rates: Floats | None = None,
    search: bool = True,
) -> Iterator[Choice]:
    """Yield every way to run a workload with the seconds it would take if `prediction` were true.

    Args:
        search: whether the look-ahead is worth it; without estimates for single requests it loses to the greedy rule.
    """
    for plan in static_plans(workload, prediction.expected).values():
        yield Choice(plan.name, plan.seconds, None, static=plan)
    believed = replace_lengths(workload, prediction)
    known = KnownLengths()

    def seconds(scheduler: Scheduler, layout: int) -> float:
        return simulate(
            believed,
            scheduler,
            known,
            allowed=allowed,
            true_rates=believed_rates,
            group=group_size(workload.workers),
            preferred=layout,
        ).seconds

    rule = Rule(GREEDY)
    layouts = range(len(layout_sizes(workload.workers // group_size(workload.workers), len(workload.pipelines))))
    found = [Choice("greedy", seconds(rule, layout), rule, layout) for layout in layouts]
    best = min(found, key=lambda each: each.seconds)
    yield best
    if search:
        ahead = LookAhead()
        yield Choice("look-ahead", seconds(ahead, best.preferred), ahead, best.preferred)


def choose(
    workload: Workload,
    forecaster: Forecaster,
    *,
    allowed: frozenset[Flag] = ALL_ACTIONS,
    believed_rates: Floats | None = None,
    search: bool = True,
) -> Choice:
    """Return the option that is predicted to end first."""
    prediction = forecaster.start(workload)
    found = options(workload, prediction, allowed=allowed, believed_rates=believed_rates, search=search)
    return min(found, key=lambda each: each.seconds)


def replace_lengths(workload: Workload, prediction: Prediction) -> Workload:
    """Return the workload as it is believed to be."""
    pipelines = tuple(
        msgspec.structs.replace(pipeline, lengths=tuple(tuple(np.maximum(1.0, step).tolist()) for step in steps))
        for pipeline, steps in zip(workload.pipelines, prediction.expected, strict=True)
    )
    return msgspec.structs.replace(workload, pipelines=pipelines)
