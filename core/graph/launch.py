"""Chooses at launch how a workload is run: every option is simulated on what is known, the best one is taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from slipstream.core.graph.compiled.model import Flag, Floats
from slipstream.core.graph.compiled.policies import GREEDY
from slipstream.core.graph.forecast import Forecaster, Given, with_errors
from slipstream.core.graph.schedulers import LookAhead, Rule, Scheduler
from slipstream.core.graph.simulator import simulate
from slipstream.core.graph.static_plans import StaticPlan, carry_out, static_plans
from slipstream.core.graph.view import Prediction
from slipstream.core.graph.workload import Workload
from slipstream.core.graph.world import ALL_ACTIONS, layout_sizes

GRAPH_NAMES = ("greedy", "look-ahead")
MARGINS = (0.0, 0.02, 0.05)
"""Of the look-ahead; the more predictions err, the more it pays to keep to the greedy rule."""

SAMPLES = 3
"""Futures that are drawn when predictions are known to err."""

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
    error: float = 0.0,
    allowed: frozenset[Flag] = ALL_ACTIONS,
    believed_rates: Floats | None = None,
    search: bool = True,
) -> Iterator[Choice]:
    """Yield every way to run a workload with the seconds it would take.

    Args:
        error: relative error of the predicted lengths, as measured so far. With one, the truth is drawn around the
            prediction `SAMPLES` times, and the mean counts: what relies too much on predictions then loses here.
        search: whether the look-ahead is tried; without estimates for single requests it loses to the greedy rule.
    """
    truths = [prediction.expected]
    if error > 0.0:
        truths = [with_errors(workload, prediction.expected, error, 1000 + sample) for sample in range(SAMPLES)]
    for plan in static_plans(workload, prediction.expected).values():
        seconds = float(np.mean([carry_out(workload, truth, plan).seconds for truth in truths]))
        yield Choice(plan.name, seconds, None, static=plan)
    group = group_size(workload.workers)
    worlds = [replace_lengths(workload, truth) for truth in truths]

    def simulated(name: str, scheduler: Scheduler, layout: int) -> Choice:
        runs = [
            simulate(
                world,
                scheduler,
                Given(prediction),
                allowed=allowed,
                true_rates=believed_rates,
                group=group,
                preferred=layout,
            )
            for world in worlds
        ]
        return Choice(name, float(np.mean([run.seconds for run in runs])), scheduler, layout)

    layouts = range(len(layout_sizes(workload.workers // group, len(workload.pipelines))))
    best = min((simulated("greedy", Rule(GREEDY), each) for each in layouts), key=lambda each: each.seconds)
    yield best
    if search:
        ahead = (simulated("look-ahead", LookAhead(margin), best.preferred) for margin in MARGINS)
        yield min(ahead, key=lambda each: each.seconds)


def choose(
    workload: Workload,
    forecaster: Forecaster,
    *,
    error: float = 0.0,
    allowed: frozenset[Flag] = ALL_ACTIONS,
    believed_rates: Floats | None = None,
    search: bool = True,
) -> Choice:
    """Return the option that is predicted to end first; arguments as for `options`."""
    prediction = forecaster.start(workload)
    found = options(workload, prediction, error=error, allowed=allowed, believed_rates=believed_rates, search=search)
    return min(found, key=lambda each: each.seconds)


def replace_lengths(workload: Workload, lengths: Sequence[Sequence[Floats]]) -> Workload:
    """Return the workload with other lengths, by pipeline and step."""
    pipelines = tuple(
        msgspec.structs.replace(pipeline, lengths=tuple(tuple(np.maximum(1.0, step).tolist()) for step in steps))
        for pipeline, steps in zip(workload.pipelines, lengths, strict=True)
    )
    return msgspec.structs.replace(workload, pipelines=pipelines)
