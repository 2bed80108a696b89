"""Whether moving a trajectory to another replica shortens the step: finish estimates against the prefill it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from slipstream.core.rollout.costs import StepCosts
from slipstream.core.rollout.finish import Array, finish_seconds
from slipstream.core.rollout.replica import Live, ReplicaState
from slipstream.core.rollout.settings import RouterSettings

Remaining = Callable[[Live], float]


class Load(NamedTuple):
    """What a finish estimate needs of a replica."""

    live: tuple[Live, ...]
    remaining: Array
    context: Array
    duty: float
    """Share of live trajectories in the engine; kept when one comes or goes, whichever state it is in."""

    seconds: float


class Move(NamedTuple):
    """A migration that pays."""

    live: Live
    source: ReplicaState
    target: ReplicaState
    gain: float
    """Seconds, after the prefill it costs."""


def load_of(replica: ReplicaState, remaining: Remaining, costs: StepCosts) -> Load:
    """Estimate when a replica would be done."""
    live = tuple(replica.live.values())
    left = np.fromiter(map(remaining, live), np.float64, len(live))
    context = np.fromiter((each.context for each in live), np.float64, len(live))
    duty = min(max(replica.in_flight / len(live), 0.25), 1.0) if live else 1.0
    return Load(live, left, context, duty, finish_seconds(left, context, duty, costs))


def extra_prefill(live: Live, target: ReplicaState, costs: StepCosts) -> float:
    """Seconds of prefill at the target that staying would not take: 0 when its context is not at home."""
    if not live.resident:
        return 0.0
    total = live.context
    return costs.prefill_seconds(live.own + live.decoded + target.new_shared(live.shared), total)


def move_gain(live: Live, source: Load, target: Load, left: float, extra: float, costs: StepCosts) -> float:
    """Return by how many seconds a move brings the later of the two replicas forward.

    :param left: output tokens the trajectory still has to produce.
    :param extra: seconds of prefill that it costs at the target.
    """
    stay = np.fromiter((each is not live for each in source.live), np.bool_, len(source.live))
    without = finish_seconds(source.remaining[stay], source.context[stay], source.duty, costs)
    duty = target.duty if target.live else source.duty
    joined = finish_seconds(np.append(target.remaining, left), np.append(target.context, live.context), duty, costs)
    return max(source.seconds, target.seconds) - max(without, joined + extra)


def enough(gain: float, extra: float, home_seconds: float, settings: RouterSettings, single_turn: bool) -> bool:
    """Whether a gain is worth the prefill, the disturbance, and the error of the prediction."""
    share = settings.move_gain_share if single_turn else settings.multi_turn_gain_share
    return gain - settings.move_margin * extra >= max(settings.move_gain_seconds, share * home_seconds)


def best_migration(
    replicas: Sequence[ReplicaState],
    remaining: Remaining,
    has_room: Callable[[Live, ReplicaState], bool],
    costs: StepCosts,
    settings: RouterSettings,
    single_turn: bool,
    now: float,
) -> Move | None:
    """Return the migration that gains most, from the replica that would be done last to the one done first.

    Any decoding trajectory is a candidate, not only the longest: moving short companions away from a long one is
    often cheaper.
    """
    if len(replicas) < 2:
        return None
    loads = [load_of(replica, remaining, costs) for replica in replicas]
    last = max(range(len(loads)), key=lambda index: loads[index].seconds)
    first = min(range(len(loads)), key=lambda index: loads[index].seconds)
    source, target = loads[last], loads[first]
    if source.seconds - target.seconds <= settings.imbalance * source.seconds:
        return None
    best: Move | None = None
    for live, left in zip(source.live, source.remaining, strict=True):
        movable = live.dispatched and live.decoded and live.moves < settings.moves
        if (
            not movable
            or live.moves_this_turn >= settings.moves_per_turn
            or now < live.moved_at + settings.rest_seconds
        ):
            continue
        extra = extra_prefill(live, replicas[first], costs)
        if source.seconds - target.seconds <= extra or not has_room(live, replicas[first]):
            continue
        gain = move_gain(live, source, target, float(left), extra, costs)
        if enough(gain, extra, source.seconds, settings, single_turn) and (best is None or gain > best.gain):
            best = Move(live, replicas[last], replicas[first], gain)
    return best
