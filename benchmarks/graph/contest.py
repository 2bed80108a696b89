"""One workload under every scheduler, and what slipstream itself would choose."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from slipstream.core.graph.compiled.model import Flag
from slipstream.core.graph.forecast import Forecaster
from slipstream.core.graph.launch import choose, group_size
from slipstream.core.graph.schedulers import (
    GREEDY_RULE,
    ROUND_ROBIN_RULE,
    THRESHOLD_RULE,
    Beam,
    Scheduler,
)
from slipstream.core.graph.simulator import Run, simulate
from slipstream.core.graph.static_plans import carry_out, exclusive_seconds, static_plans
from slipstream.core.graph.workload import Workload
from slipstream.core.graph.world import ALL_ACTIONS, layout_sizes

REFERENCES = ("even split", "uneven split", "pool split", "round robin", "threshold", "beam", "greedy")


@dataclass
class Outcome:
    """Serial time over each scheduler's, and how slipstream did."""

    over_serial: dict[str, float]
    chosen: str
    latency: float
    """Mean over pipelines: end over exclusive time, under slipstream."""
    worst_latency: float
    planning: list[float]
    """Seconds."""

    @property
    def over_static(self) -> float:
        """Slipstream over the best plan that needs no scheduler, serial included."""
        static = [self.over_serial.get(name, 1.0) for name in ("even split", "uneven split", "pool split")]
        return self.over_serial["slipstream"] / max(1.0, *static)


def contest(
    workload: Workload,
    forecaster: Forecaster,
    *,
    references: tuple[str, ...] = REFERENCES,
    allowed: frozenset[Flag] = ALL_ACTIONS,
    search: bool = True,
    error: float = 0.0,
    believed_rates: np.ndarray | None = None,
) -> Outcome:
    """Run a workload under slipstream and the references named.

    The static plans know all lengths; everything else is told what `forecaster` says. The greedy rule deals as
    slipstream would, on the layout that was best in simulation.
    """
    lengths = [pipeline.step_lengths() for pipeline in workload.pipelines]
    serial = sum(exclusive_seconds(workload, lengths))
    group = group_size(workload.workers)
    options = {"allowed": allowed, "group": group, "believed_rates": believed_rates}
    run: functools.partial[Run] = functools.partial(simulate, workload, forecaster=forecaster, **options)
    found = {
        name: serial / plan.seconds for name, plan in static_plans(workload, lengths).items() if name in references
    }
    chosen = choose(workload, forecaster, error=error, allowed=allowed, believed_rates=believed_rates, search=search)
    rules: dict[str, Scheduler] = {"round robin": ROUND_ROBIN_RULE, "threshold": THRESHOLD_RULE, "beam": Beam()}
    for name, scheduler in rules.items():
        if name in references:
            found[name] = run(scheduler).speedup
    layouts = len(layout_sizes(workload.workers // group, len(workload.pipelines)))
    if "greedy" in references:
        preferred = chosen.preferred
        if chosen.scheduler is None:  # then greedy was not best; deal to an even share, or to all if there is none
            preferred = min(1, layouts - 1)
        found["greedy"] = run(GREEDY_RULE, preferred=preferred).speedup
    if chosen.scheduler is None:
        assert chosen.static is not None
        plan = carry_out(workload, lengths, chosen.static)
        found["slipstream"] = serial / plan.seconds
        latency = np.array(plan.ends) / np.array(exclusive_seconds(workload, lengths))
        return Outcome(found, chosen.name, float(latency.mean()), float(latency.max()), [])
    own = run(chosen.scheduler, preferred=chosen.preferred)
    found["slipstream"] = own.speedup
    return Outcome(found, chosen.name, float(own.latency.mean()), float(own.latency.max()), own.planning)
