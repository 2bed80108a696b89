"""When a replica would be done with what it has: the estimate that moves are decided by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slipstream.core.rollout.costs import StepCosts

Array = npt.NDArray[np.float64]


def finish_seconds(remaining: Array, context: Array, duty: float, costs: StepCosts) -> float:
    """Return the seconds until all live trajectories of a replica have produced their remaining tokens.

    The sum over k of (r_k - r_(k-1)) (step + duty sum over those still running of (request + context x tokens)),
    with r sorted.

    Args:
        remaining: float64[live], output tokens left.
        context: float64[live], tokens of context now.
        duty: share of the time that a live trajectory is in the engine rather than in a tool.
    """
    live = remaining.size
    if not live:
        return 0.0
    order = np.argsort(remaining)
    ends = remaining[order]
    widths = np.diff(ends, prepend=0.0)
    running = np.arange(live, 0, -1)
    tokens = np.cumsum(context[order][::-1])[::-1]
    each = costs.step + duty * (costs.request * running + costs.context * tokens)
    return float(widths @ each)


def finish_seconds_reference(
    remaining: Sequence[float], context: Sequence[float], duty: float, costs: StepCosts
) -> float:
    """`finish_seconds` as a loop."""
    live = sorted(zip(remaining, context, strict=True))
    seconds = before = 0.0
    for index, (end, _) in enumerate(live):
        still = live[index:]
        each = costs.step + duty * sum(costs.request + costs.context * tokens for _, tokens in still)
        seconds += (end - before) * each
        before = end
    return seconds
