"""The cache-aware router: trajectories are admitted, not requests routed.

A trajectory is bound to a replica late, from one global queue, when its expected context fits the replica's KV beside
those already live, and stays live until it ends. Its returning turns go home at once. When predictions were wrong and
memory runs short, the youngest are parked until something ends.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.core.rollout.costs import CostFit, StepCosts
from slipstream.core.rollout.groups import GroupOrder
from slipstream.core.rollout.head_start import HeadStart
from slipstream.core.rollout.moves import best_migration, enough, extra_prefill, load_of, move_gain
from slipstream.core.rollout.placement import place
from slipstream.core.rollout.prediction import FinishedLengths, LengthModel
from slipstream.core.rollout.replica import Live, ReplicaState
from slipstream.core.rollout.requests import (
    Abort,
    Action,
    Dispatch,
    GroupId,
    LoadReport,
    ReplicaId,
    ReplicaLimits,
    RequestId,
    TrajectoryId,
    Turn,
    TurnResult,
)
from slipstream.core.rollout.settings import RouterSettings


@dataclass(slots=True)
class Counts:
    """What the router did, for metrics."""

    dispatched: int = 0
    parked: int = 0
    return_moves: int = 0
    migrations: int = 0
    evacuated: int = 0
    """Requests taken from lost or stalled replicas."""


@dataclass(slots=True, eq=False)
class _InFlight:
    live: Live
    replica: ReplicaId
    attempt: int
    aborting: bool = False


class CacheAwareRouter:
    """Implements `policy.RoutingPolicyLike`; every request is in exactly one place: queued, parked or in flight.

    :param history: lengths of the step before, if there was one.
    :param known: mean output tokens by group from an earlier epoch of the same prompts.
    :param head_start: when to hold siblings back for the drafter; None never does.
    """

    def __init__(
        self,
        settings: RouterSettings | None = None,
        *,
        history: Iterable[FinishedLengths] = (),
        known: Mapping[GroupId, float] | None = None,
        costs: StepCosts | None = None,
        head_start: HeadStart | None = None,
    ) -> None:
        self.settings = settings or RouterSettings()
        self.lengths = LengthModel()
        self.costs = CostFit(costs)
        self.counts = Counts()
        self.replicas: dict[ReplicaId, ReplicaState] = {}
        self.poll_seconds: float | None = self.settings.move_seconds or None
        self._random = random.Random(self.settings.seed)
        self._live: dict[TrajectoryId, tuple[Live, ReplicaState | None]] = {}
        """Bound trajectories and their homes; None for a home that is lost."""
        self._requests: dict[RequestId, _InFlight] = {}
        self._attempts: dict[RequestId, int] = {}
        """Of every request that is not answered; the last attempt."""
        self._parked: list[tuple[int, int, Live, ReplicaState | None]] = []
        self._returned: list[Live] = []
        self._aborts: list[Abort] = []
        self._order = GroupOrder(self.settings, self.lengths, self._random, head_start)
        self._bindings = self._pushes = 0
        self._looked = self._checked = float("-inf")
        self.start_step(history, known)

    def start_step(self, history: Iterable[FinishedLengths] = (), known: Mapping[GroupId, float] | None = None) -> None:
        """Begin a rollout step: lengths that ended since the last call become history, unless given."""
        self.lengths.start_step(history, known)
        self._order.start_step(use_head_start=not known)

    # -- replicas -----------------------------------------------------------------------------------------------------

    def add_replica(self, replica: ReplicaId, limits: ReplicaLimits, now: float) -> None:
        """Use a replica from now on.

        :raises ValueError: when it is there already.
        """
        if replica in self.replicas:
            raise ValueError(f"replica {replica!r} is there already; remove it first")
        state = self.replicas[replica] = ReplicaState.of(replica, limits)
        state.heard = now
        self._order.replicas_changed()

    def remove_replica(self, replica: ReplicaId, now: float) -> None:
        """Stop using a replica; its requests are bound elsewhere, those bound first in front.

        :raises KeyError: when there is no such replica.
        """
        if replica not in self.replicas:
            raise KeyError(f"no replica {replica!r}; known: {', '.join(map(repr, self.replicas)) or 'none'}")
        self._evacuate(self.replicas.pop(replica))
        self._order.replicas_changed()

    def _evacuate(self, state: ReplicaState) -> None:
        for live in list(state.live.values()):
            state.release(live)
            live.resident = False
            self._live[live.trajectory] = (live, None)
            if live.turn is None:
                continue
            record = self._requests.pop(live.turn.request_id, None)
            if record is not None:
                self._aborts.append(Abort(live.turn.request_id, state.name, record.attempt))
                live.dispatched, live.target, live.decoded = False, None, 0
                self.counts.evacuated += 1
                self._park(live, None)
        state.in_flight = 0

    def report(self, replica: ReplicaId, load: LoadReport, now: float) -> None:
        """Take what an engine says about itself."""
        state = self.replicas.get(replica)
        if state is not None:
            self._hear(state, now)
            state.report(load)
            self.costs.add(load)

    def weights_changed(self, version: int, now: float) -> None:
        """New weights: with `settings.weights` ``reset``, no context is cached anywhere any more."""
        if self.settings.weights == "reset":
            for live, _ in self._live.values():
                live.resident = False

    def _hear(self, state: ReplicaState, now: float) -> None:
        state.heard, state.stalled = now, False

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(self, turn: Turn, now: float) -> None:
        """Take a request. A turn of a trajectory that is not live is admitted like a first one.

        :raises ValueError: when the request, or another of its trajectory, is not answered yet.
        """
        if turn.request_id in self._attempts:
            raise ValueError(f"request {turn.request_id!r} is not answered yet; request ids must be unique")
        known = self._live.get(turn.trajectory)
        if known is None:
            self._order.push(turn, self._reserved(turn.own_tokens, 0, turn.group))
        else:
            live, home = known
            if live.turn is not None:
                raise ValueError(
                    f"trajectory {turn.trajectory!r} has request {live.turn.request_id!r} under way; "
                    f"submit {turn.request_id!r} after its answer"
                )
            if turn.shared != live.shared:  # a prefix that turned out to be shared
                if home is not None:
                    home.release(live)
                live.own += live.shared_tokens - sum(tokens for _, tokens in turn.shared)
                live.shared = turn.shared
                if home is not None:
                    home.bind(live)
            live.newest_input = max(turn.own_tokens - live.own, 0)
            live.later_inputs += live.newest_input
            live.turn = turn
            self._refresh(live, home, turn.own_tokens)
            self._returned.append(live)
        self._attempts[turn.request_id] = 0

    def progress(self, request_id: RequestId, output_tokens: int, now: float) -> None:
        """Take the output tokens of the current attempt."""
        record = self._requests.get(request_id)
        if record is None:
            return
        record.live.decoded, record.live.resident = output_tokens, True
        self._hear(self.replicas[record.replica], now)
        live = record.live
        if self.lengths.progress(live.trajectory, live.group, live.produced + live.stitched + output_tokens):
            self._order.touch(live.group)
        self._order.decoded(live.group, output_tokens)

    def finished(self, request_id: RequestId, attempt: int, result: TurnResult, now: float) -> bool:
        """Take an answer; False when it belongs to an earlier attempt and must be dropped.

        An aborted request stays the router's: it is dispatched again, for the rest of its tokens.
        """
        record = self._requests.get(request_id)
        if record is None or record.attempt != attempt:
            return False
        del self._requests[request_id]
        live = record.live
        _, home = self._live[live.trajectory]
        state = self.replicas[record.replica]
        state.in_flight -= 1
        self._hear(state, now)
        live.dispatched, live.decoded = False, 0
        live.stitched += result.output_tokens
        assert live.turn is not None
        self._refresh(live, home, live.own + result.output_tokens)
        if result.aborted and not result.ended:
            self._returned.append(live)
            return True
        self._learn_capacity(live, state, result)
        live.produced += live.stitched
        live.turns += 1
        live.stitched = live.moves_this_turn = 0
        live.turn, live.target, live.resident = None, None, True
        del self._attempts[request_id]
        if result.ended:
            self.end_trajectory(live.trajectory, now)
        return True

    def cancel(self, request_id: RequestId, now: float) -> None:
        """Forget a request that its client gave up; its trajectory stays live until it ends."""
        if self._attempts.pop(request_id, None) is None:
            return
        record = self._requests.pop(request_id, None)
        if record is not None:
            self.replicas[record.replica].in_flight -= 1
            self._aborts.append(Abort(request_id, record.replica, record.attempt))
            live = record.live
            live.produced += live.stitched
            live.turn, live.dispatched, live.decoded, live.stitched, live.target = None, False, 0, 0, None
            return
        self._order.remove(request_id)
        for live in (*self._returned, *(entry[2] for entry in self._parked)):
            if live.turn is not None and live.turn.request_id == request_id:
                live.turn = None
        self._returned = [live for live in self._returned if live.turn is not None]
        self._parked = [entry for entry in self._parked if entry[2].turn is not None]
        heapq.heapify(self._parked)

    def end_trajectory(self, trajectory: TrajectoryId, now: float) -> None:
        """Forget a trajectory; what it has under way is cancelled."""
        known = self._live.get(trajectory)
        if known is None:
            return
        live, home = known
        if live.turn is not None:
            self.cancel(live.turn.request_id, now)
        del self._live[trajectory]
        if home is not None and trajectory in home.live:
            home.release(live)
        if live.turns:
            self.lengths.ended(trajectory, live.group, FinishedLengths(live.produced, live.later_inputs, live.turns))
        self._order.ended(live.group)

    def expire(self, seconds: float, now: float) -> list[TrajectoryId]:
        """End trajectories that have been in a tool for longer, and return them; for frameworks that do not say when
        a trajectory ends. A later turn of one is admitted anew."""
        gone = [name for name, (live, _) in self._live.items() if live.turn is None and now - live.last_seen > seconds]
        for name in gone:
            self.end_trajectory(name, now)
        return gone

    @property
    def waiting(self) -> int:
        """Requests that are held: queued, parked, or returned since the last poll."""
        return len(self._attempts) - len(self._requests)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def poll(self, now: float) -> Sequence[Action]:
        """Answer with what to do now."""
        actions: list[Action] = []
        self._find_stalled(now)
        for live in self._returned:
            self._return(live, now, actions)
        self._returned.clear()
        self._bind_waiting(now, actions)
        if self.settings.move_seconds and now - self._looked >= self.settings.move_seconds:
            self._looked = now
            self._migrate(now, actions)
        actions += self._aborts
        self._aborts.clear()
        return actions

    def _find_stalled(self, now: float) -> None:
        if now - self._checked < min(1.0, self.settings.stall_seconds):
            return
        self._checked = now
        for state in self.replicas.values():
            if state.in_flight and not state.stalled and now - state.heard > self.settings.stall_seconds:
                state.stalled = True
                self._evacuate(state)

    def _return(self, live: Live, now: float, actions: list[Action]) -> None:
        """Send a returning turn home, park it, or move it."""
        _, home = self._live[live.trajectory]
        if live.target is not None:
            target, live.target = self.replicas.get(live.target), None
            if target is not None and not target.stalled and home is not target:
                self._move(live, home, target)
                live.moves += 1
                live.moves_this_turn += 1
                live.moved_at = now
                self.counts.migrations += 1
                self._dispatch(live, target, now, actions)
                return
        if home is None or home.stalled:
            if home is not None:
                home.release(live)
                self._live[live.trajectory] = (live, None)
            self._park(live, None)
        elif self._crowded_out(live, home):
            home.release(live)
            live.resident = False
            self._park(live, home)
            self.counts.parked += 1
        else:
            self._dispatch(live, self._break_home(live, home), now, actions)

    def _crowded_out(self, live: Live, home: ReplicaState) -> bool:
        limit = self.settings.park_share * home.kv.effective
        if home.own + home.shared <= limit:
            return False
        elders = home.older_own(live.bound)
        return bool(elders) and elders + live.own + home.shared > limit

    def _break_home(self, live: Live, home: ReplicaState) -> ReplicaState:
        """Return the replica for a returning turn: home, unless nothing waits and another would end the step sooner."""
        settings, costs, single = self.settings, self.costs.costs, self.lengths.single_turn
        if not settings.move_seconds or len(self.replicas) < 2 or len(self._order) or self._parked:
            return home
        other = min((each for each in self.replicas.values() if each is not home), key=lambda each: each.finish)
        if other.stalled or home.finish - other.finish < settings.move_gain_seconds:
            return home
        extra = extra_prefill(live, other, costs)
        if not enough(home.finish - other.finish, extra, home.finish, settings, single) or not self._fits(live, other):
            return home
        here, there = load_of(home, self._remaining, costs), load_of(other, self._remaining, costs)
        gain = move_gain(live, here, there, self._remaining(live), extra, costs)
        home.finish, other.finish = here.seconds, there.seconds
        if not enough(gain, extra, here.seconds, settings, single):
            return home
        self._move(live, home, other)
        self.counts.return_moves += 1
        return other

    def _bind_waiting(self, now: float, actions: list[Action]) -> None:
        """Bind parked trajectories, oldest first, then new ones; nothing new enters while anyone is parked."""
        while self._parked:
            _, _, live, home = self._parked[0]
            if live.turn is None:
                heapq.heappop(self._parked)
                continue
            if home is not None and (self.replicas.get(home.name) is not home or not self._fits(live, home)):
                home = None
            if home is None:
                roomy = [each for each in self.replicas.values() if self._fits(live, each)]
                if not roomy:
                    return
                home = min(roomy, key=lambda each: (each.footprints, self._random.random()))
            heapq.heappop(self._parked)
            home.bind(live)
            self._live[live.trajectory] = (live, home)
            self._dispatch(live, home, now, actions)
        if len(self._order):
            self._order.observe(self.replicas.values(), len(self._live))
        while (turn := self._order.peek()) is not None:
            footprint = self._reserved(turn.own_tokens, 0, turn.group)
            cap = self.settings.live_share(self.lengths.single_turn)
            target = place(self.replicas.values(), turn, footprint, self.settings, cap, self._random)
            if target is None:
                return
            self._order.pop()
            self._bindings += 1
            live = Live(turn.trajectory, turn.group, turn.shared, self._bindings, turn.own_tokens)
            live.turn, live.footprint = turn, footprint
            live.remaining = self.lengths.remaining(0, turn.group)
            self.lengths.guess(turn.trajectory, turn.group)
            target.bind(live)
            self._live[turn.trajectory] = (live, target)
            self._dispatch(live, target, now, actions)

    def _migrate(self, now: float, actions: list[Action]) -> None:
        """Refresh the finish estimates and abort one request that should go on elsewhere."""
        costs = self.costs.costs
        if len(self._order) or self._parked or not self._live:
            return
        states = [each for each in self.replicas.values() if not each.stalled]
        for state in states:
            state.finish = load_of(state, self._remaining, costs).seconds
        move = best_migration(states, self._remaining, self._fits, costs, self.settings, self.lengths.single_turn, now)
        if move is None or move.live.turn is None:
            return
        record = self._requests[move.live.turn.request_id]
        if not record.aborting:
            record.aborting = True
            move.live.target = move.target.name
            actions.append(Abort(move.live.turn.request_id, record.replica, record.attempt))

    # -- bookkeeping --------------------------------------------------------------------------------------------------

    def _dispatch(self, live: Live, state: ReplicaState, now: float, actions: list[Action]) -> None:
        assert live.turn is not None
        request_id = live.turn.request_id
        attempt = self._attempts[request_id] = self._attempts[request_id] + 1
        self._requests[request_id] = _InFlight(live, state.name, attempt)
        if not state.in_flight:
            state.heard = now
        state.in_flight += 1
        live.dispatched, live.decoded, live.last_seen = True, 0, now
        self.counts.dispatched += 1
        late = self._order.overloaded and not live.turns
        actions.append(Dispatch(request_id, state.name, attempt, int(late)))

    def _park(self, live: Live, home: ReplicaState | None) -> None:
        self._pushes += 1
        heapq.heappush(self._parked, (live.bound, self._pushes, live, home))

    def _move(self, live: Live, home: ReplicaState | None, target: ReplicaState) -> None:
        if home is not None:
            home.release(live)
        live.resident = False
        target.bind(live)
        self._live[live.trajectory] = (live, target)

    def _refresh(self, live: Live, home: ReplicaState | None, own: int) -> None:
        produced = live.produced + live.stitched
        footprint = self._reserved(own, produced, live.group)
        remaining = self.lengths.remaining(produced, live.group)
        if home is not None and live.trajectory in home.live:
            home.update(live, own, footprint, remaining)
        else:
            live.own, live.footprint, live.remaining = own, footprint, remaining

    def _reserved(self, own: int, produced: int, group: GroupId) -> float:
        share = self.settings.reserve_share(self.lengths.single_turn)
        return own + share * self.lengths.growth(produced, group)

    def _remaining(self, live: Live) -> float:
        return self.lengths.remaining(live.produced + live.stitched + live.decoded, live.group)

    def _fits(self, live: Live, state: ReplicaState) -> bool:
        cap = self.settings.live_share(self.lengths.single_turn)
        return state.has_room(live.footprint, live.shared, self.settings.kv_share, cap)

    def _learn_capacity(self, live: Live, state: ReplicaState, result: TurnResult) -> None:
        """A returning turn that found less at home than it left there says that the replica holds less than thought."""
        if result.cached_tokens is None or not live.turns or not live.resident or live.turn is None:
            return
        left = live.turn.tokens - live.newest_input
        if result.cached_tokens < 0.9 * left:
            state.kv.overflowed()
        else:
            state.kv.held()
