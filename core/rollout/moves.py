"""Whether moving a trajectory to another replica shortens the step: finish estimates against the prefill it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from slipstream.core.rollout.costs import CostFit, StepCosts
from slipstream.core.rollout.finish import Array, finish_seconds
from slipstream.core.rollout.prediction import LengthModel
from slipstream.core.rollout.replica import Live, ReplicaState
from slipstream.core.rollout.settings import RouterSettings

HasRoom = Callable[[Live, ReplicaState], bool]


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


def enough(gain: float, extra: float, home_seconds: float, settings: RouterSettings) -> bool:
    """Whether a gain is worth the prefill, the disturbance, and the error of the prediction."""
    least = max(settings.move_gain_seconds, settings.move_gain_share * home_seconds)
    return gain - settings.move_margin * extra >= least


class Mover:
    """Looks for moves, for returning turns and in the middle of one.

    :param has_room: whether a trajectory may be bound to a replica.
    """

    def __init__(self, settings: RouterSettings, costs: CostFit, lengths: LengthModel, has_room: HasRoom) -> None:
        self._settings, self._fit, self._lengths, self._has_room = settings, costs, lengths, has_room

    def better_home(self, live: Live, home: ReplicaState, replicas: Iterable[ReplicaState]) -> ReplicaState | None:
        """Return the replica where a returning turn should go instead of home; None to stay.

        Judged first by the estimates of the last look, so that most decisions cost a comparison.
        """
        settings, costs = self._settings, self._fit.costs
        other = min((each for each in replicas if each is not home), key=lambda each: each.finish, default=home)
        ahead = home.finish - other.finish
        if other is home or other.stalled or ahead <= self._imbalance * home.finish:
            return None
        extra = extra_prefill(live, other, costs)
        if not enough(ahead, extra, home.finish, settings) or not self._has_room(live, other):
            return None
        here, there = self._load(home), self._load(other)
        gain = move_gain(live, here, there, self._remaining(live), extra, costs)
        return other if enough(gain, extra, here.seconds, settings) else None

    def best_migration(self, replicas: Sequence[ReplicaState], now: float) -> Move | None:
        """Return the migration that gains most, from the replica that would be done last to the one done first.

        Any decoding trajectory is a candidate, not only the longest: moving short companions away from a long one is
        often cheaper.
        """
        loads = [self._load(replica) for replica in replicas]
        if len(loads) < 2:
            return None
        last = max(range(len(loads)), key=lambda index: loads[index].seconds)
        first = min(range(len(loads)), key=lambda index: loads[index].seconds)
        source, target = loads[last], loads[first]
        ahead = source.seconds - target.seconds
        if ahead <= self._imbalance * source.seconds:
            return None
        settings, costs = self._settings, self._fit.costs
        best: Move | None = None
        for live, left in zip(source.live, source.remaining, strict=True):
            extra = extra_prefill(live, replicas[first], costs)
            if not self._movable(live, now) or ahead <= extra or not self._has_room(live, replicas[first]):
                continue
            gain = move_gain(live, source, target, float(left), extra, costs)
            if enough(gain, extra, source.seconds, settings) and (best is None or gain > best.gain):
                best = Move(live, replicas[last], replicas[first], gain)
        return best

    @property
    def _imbalance(self) -> float:
        return self._settings.imbalance_share(self._lengths.single_turn)

    def _movable(self, live: Live, now: float) -> bool:
        settings = self._settings
        rested = now >= live.moved_at + settings.rest_seconds
        few = live.moves < settings.moves and live.moves_this_turn < settings.moves_per_turn
        can = live.turn is not None and live.turn.movable
        return can and live.dispatched and live.decoded > 0 and few and rested

    def _remaining(self, live: Live) -> float:
        return self._lengths.remaining(live.produced + live.stitched + live.decoded, live.group)

    def _load(self, replica: ReplicaState) -> Load:
        """Estimate when a replica would be done, and remember it."""
        live = tuple(replica.live.values())
        left = np.fromiter(map(self._remaining, live), np.float64, len(live))
        context = np.fromiter((each.context for each in live), np.float64, len(live))
        duty = min(max(replica.in_flight / len(live), 0.25), 1.0) if live else 1.0
        replica.finish = finish_seconds(left, context, duty, self._fit.costs)
        return Load(live, left, context, duty, replica.finish)
