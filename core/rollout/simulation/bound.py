"""A lower bound on the time of a step for a scheduler that knows all lengths."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.rollout.simulation.cluster import unique_prompt_tokens
from slipstream.core.rollout.simulation.engine import EngineModel
from slipstream.core.rollout.simulation.workload import Trajectory, Workload


def lower_bound(workload: Workload, models: Sequence[EngineModel]) -> float:
    """Return max(the longest trajectory alone, nothing recomputed; total work / replicas) in seconds.

    Work is the decode cost of every token and context token, every distinct prompt token prefilled once, and a step's
    base cost for max(tokens / max_running, own-context token-steps / KV) iterations. Both terms cannot be reached at
    once when they are close: a lone trajectory's speed and a full batch exclude each other.

    :param models: one per replica; replicas that differ are not supported.
    """
    model = models[0]
    if any(each != model for each in models):
        raise ValueError("the lower bound needs replicas that are alike")
    costs, limits = model.costs, model.limits
    longest = max(_alone(each, model) for each in workload.trajectories)
    tokens = decoded = context = own = 0
    for each in workload.trajectories:
        with_shared, own_only = _token_steps(each)
        tokens += each.output_tokens
        decoded += each.output_tokens - len(each.turns)
        context += with_shared
        own += own_only
    iterations = max(tokens / limits.max_running, own / limits.kv_tokens)
    work = (
        costs.request * decoded
        + costs.context * context
        + costs.prefill * unique_prompt_tokens(workload)
        + costs.step * iterations
    )
    return max(longest, work / len(models))


def _token_steps(trajectory: Trajectory) -> tuple[int, int]:
    """Sum over decode steps of the context, with and without shared segments; a turn's first token is its prefill's."""
    own = total = 0
    for turn in trajectory.turns:
        own += turn.input_tokens
        steps = turn.output_tokens - 1
        total += steps * own + steps * (steps + 1) // 2
        own += turn.output_tokens
    return total + trajectory.shared_tokens * (trajectory.output_tokens - len(trajectory.turns)), total


def _alone(trajectory: Trajectory, model: EngineModel) -> float:
    costs = model.costs
    context, _ = _token_steps(trajectory)
    position = trajectory.shared_tokens
    seconds = trajectory.arrival + costs.prefill_seconds(position, position)
    for index, turn in enumerate(trajectory.turns):
        position += turn.input_tokens
        seconds += costs.prefill_seconds(turn.input_tokens, position)
        if index + 1 < len(trajectory.turns):
            seconds += turn.wait_seconds
        position += turn.output_tokens
    decoded = trajectory.output_tokens - len(trajectory.turns)
    return seconds + trajectory.output_tokens * costs.step + decoded * costs.request + costs.context * context
