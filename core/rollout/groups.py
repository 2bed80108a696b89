"""The order in which new trajectories enter: longest groups first, one sibling each under overload, pilots if asked."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from slipstream.core.rollout.head_start import HeadStart
from slipstream.core.rollout.prediction import LengthModel
from slipstream.core.rollout.queue import GroupQueue, Priority
from slipstream.core.rollout.replica import ReplicaState
from slipstream.core.rollout.requests import GroupId, RequestId, Turn
from slipstream.core.rollout.settings import RouterSettings

REMEMBERED_GROUPS = 65_536


@dataclass(slots=True)
class _Progress:
    started: int = 0
    ended: int = 0
    longest: int = 0
    """Most output tokens that a request of the group is known to have."""


class GroupOrder:
    """The global queue and its rules."""

    def __init__(
        self, settings: RouterSettings, lengths: LengthModel, chance: random.Random, head_start: HeadStart | None
    ) -> None:
        self._settings, self._lengths, self._head_start = settings, lengths, head_start
        self._queue = GroupQueue(self._priority, chance)
        self._groups: OrderedDict[GroupId, _Progress] = OrderedDict()
        self._reserved = 0.0
        """Footprints of what is queued, half of the growth included."""
        self._footprints: dict[RequestId, float] = {}
        self._spread_allowed = True
        self._spread = False
        self.overloaded = False
        """Whether demand was beyond `settings.overload` times capacity at the last look."""

        self._pilot_tokens = 0
        self._mean = lengths.mean
        self._observed = 0

    def __len__(self) -> int:
        return len(self._queue)

    def start_step(self, *, use_head_start: bool) -> None:
        """Forget the groups of the last step."""
        self._groups.clear()
        self._spread_allowed = use_head_start
        self._observed = 0
        self._queue.reorder()

    def push(self, turn: Turn, footprint: float) -> None:
        """Add a trajectory's first turn."""
        self._footprints[turn.request_id] = footprint
        self._reserved += footprint
        self._queue.push(turn)

    def peek(self) -> Turn | None:
        """Return the turn that is next; held siblings only when nobody else is left to fill the batch."""
        turn = self._queue.peek()
        if turn is None and len(self._queue) and self._pilot_tokens:
            self._pilot_tokens = 0
            self._queue.reorder()
            turn = self._queue.peek()
        return turn

    def pop(self) -> Turn:
        """Take the turn that `peek` returns; its trajectory starts."""
        turn = self._queue.pop()
        self._reserved -= self._footprints.pop(turn.request_id)
        self._progress(turn.group).started += 1
        self._queue.touch(turn.group)
        return turn

    def remove(self, request_id: RequestId) -> None:
        """Drop a turn that was given up."""
        if request_id in self._footprints:
            self._reserved -= self._footprints.pop(request_id)
            self._queue.remove(request_id)

    def touch(self, group: GroupId) -> None:
        """Learn that a group's predicted length has changed."""
        self._queue.touch(group)

    def decoded(self, group: GroupId, tokens: int) -> None:
        """Learn how far a request of a group is."""
        if self._pilot_tokens and group in self._groups:
            progress = self._groups[group]
            held = progress.longest < self._pilot_tokens
            progress.longest = max(progress.longest, tokens)
            if held and progress.longest >= self._pilot_tokens:
                self._queue.touch(group)

    def ended(self, group: GroupId) -> None:
        """Learn that a trajectory of a group has ended: the group's predicted length has changed."""
        self._progress(group).ended += 1
        self._queue.touch(group)
        if abs(self._lengths.mean - self._mean) > 0.1 * self._mean:
            self._mean = self._lengths.mean
            self._queue.reorder()

    def observe(self, replicas: Iterable[ReplicaState], live: int) -> None:
        """Compare demand with capacity and choose the rules; looks again once demand has changed by a percent."""
        trajectories = len(self._queue) + live
        if abs(trajectories - self._observed) * 100 <= self._observed:
            return
        self._observed = trajectories
        slots = kv = held = 0.0
        for state in replicas:
            slots += state.max_running
            kv += state.kv.effective
            held += state.footprints
        settings = self._settings
        tokens = settings.kv_share * kv
        demand = max(trajectories / slots, (self._reserved + held) / tokens) if slots else 0.0
        self.overloaded = demand > settings.overload
        spread = demand > settings.spread_from and self._spread_allowed
        pilot = 0
        if self._head_start is not None and slots:
            pilot = self._head_start.tokens(len(self._queue) / slots, self._lengths.mean)
        if spread != self._spread or pilot != self._pilot_tokens:
            self._spread, self._pilot_tokens = spread, pilot
            self._queue.reorder()

    def replicas_changed(self) -> None:
        """Say that capacity has changed."""
        self._observed = 0

    def _priority(self, group: GroupId) -> Priority | None:
        progress = self._groups.get(group)
        started = progress is not None and progress.started > 0
        if progress is not None and started and not progress.ended and progress.longest < self._pilot_tokens:
            return None
        return (float(self._spread and started), -self._lengths.group_output(group))

    def _progress(self, group: GroupId) -> _Progress:
        progress = self._groups.get(group)
        if progress is None:
            progress = self._groups[group] = _Progress()
            if len(self._groups) > REMEMBERED_GROUPS:
                self._groups.popitem(last=False)
        return progress
