"""The cache-aware router: trajectories are admitted, not requests routed.

A trajectory is bound to a replica late, from one global queue, when its expected context fits the replica's KV beside
those already live, and stays live until it ends. Its returning turns go home at once. When predictions were wrong and
memory runs short, the youngest are parked until something ends.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.core.rollout.costs import CostFit, StepCosts
from slipstream.core.rollout.footprint import Footprints
from slipstream.core.rollout.groups import GroupOrder
from slipstream.core.rollout.head_start import HeadStart
from slipstream.core.rollout.moves import Mover
from slipstream.core.rollout.parking import ParkingLot
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
        self._unanswered: set[RequestId] = set()
        self._parking = ParkingLot()
        self._returned: list[Live] = []
        self._aborts: list[Abort] = []
        self._order = GroupOrder(self.settings, self.lengths, self._random, head_start)
        self._mover = Mover(self.settings, self.costs, self.lengths, self._fits)
        self._footprints = Footprints(self.settings, self.lengths)
        self._bindings = 0
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
            live.resident, live.cold = False, True
            self._live[live.trajectory] = (live, None)
            if live.turn is None:
                continue
            record = self._requests.pop(live.turn.request_id, None)
            if record is not None:
                self._aborts.append(Abort(live.turn.request_id, state.name, record.attempt, taken=True))
                live.dispatched, live.target, live.decoded = False, None, 0
                self.counts.evacuated += 1
                self._parking.push(live, None)
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
                live.resident, live.cold = False, True

    def _hear(self, state: ReplicaState, now: float) -> None:
        state.heard, state.stalled = now, False

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(self, turn: Turn, now: float) -> None:
        """Take a request. A turn of a trajectory that is not live is admitted like a first one.

        :raises ValueError: when the request, or another of its trajectory, is not answered yet.
        """
        if turn.request_id in self._unanswered:
            raise ValueError(f"request {turn.request_id!r} is not answered yet; request ids must be unique")
        known = self._live.get(turn.trajectory)
        if known is None:
            self._order.push(turn, self._footprints.reserved(turn.own_tokens, 0, turn.group))
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
            self._footprints.refresh(live, home, turn.own_tokens)
            self._returned.append(live)
        self._unanswered.add(turn.request_id)

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
        self._footprints.refresh(live, home, live.own + result.output_tokens)
        if result.aborted and not result.ended:
            self._returned.append(live)
            return True
        if live.resident and not live.cold and live.turns and result.cached_tokens is not None:
            state.kv.returned(live.turn.tokens - live.newest_input, result.cached_tokens)
        live.produced += live.stitched
        live.turns += 1
        live.stitched = live.moves_this_turn = 0
        live.turn, live.target, live.resident, live.cold = None, None, True, False
        self._unanswered.remove(request_id)
        if result.ended:
            self.end_trajectory(live.trajectory, now)
        return True

    def salvaged(self, trajectory: TrajectoryId, request_id: RequestId, output_tokens: int) -> None:
        """Take the tokens of an attempt whose answer was refused: they are part of the request's next prompt."""
        live, home = self._live.get(trajectory, (None, None))
        if live is not None and live.turn is not None and live.turn.request_id == request_id:
            live.stitched += output_tokens
            self._footprints.refresh(live, home, live.own + output_tokens)

    def cancel(self, request_id: RequestId, now: float) -> None:
        """Forget a request that its client gave up; its trajectory stays live until it ends."""
        if request_id not in self._unanswered:
            return
        self._unanswered.remove(request_id)
        record = self._requests.pop(request_id, None)
        if record is not None:
            self.replicas[record.replica].in_flight -= 1
            self._aborts.append(Abort(request_id, record.replica, record.attempt, taken=True))
            live = record.live
            live.produced += live.stitched
            live.turn, live.dispatched, live.decoded, live.stitched, live.target = None, False, 0, 0, None
            return
        self._order.remove(request_id)
        held = self._parking.remove(request_id)
        if held is None:
            held = next((each for each in self._returned if each.turn and each.turn.request_id == request_id), None)
        if held is not None:
            held.turn, held.target = None, None
            held.produced += held.stitched
            held.stitched = 0
        self._returned = [live for live in self._returned if live is not held]

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
        return len(self._unanswered) - len(self._requests)

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
            self._parking.push(live, None)
        elif home.crowds_out(live, self.settings.park_share):
            home.release(live)
            live.resident = False
            self._live[live.trajectory] = (live, None)
            self._parking.push(live, home)
            self.counts.parked += 1
        else:
            self._dispatch(live, self._home_or_better(live, home), now, actions)

    def _home_or_better(self, live: Live, home: ReplicaState) -> ReplicaState:
        """Return the replica for a returning turn: home, unless nothing waits and another would end the step sooner."""
        if not self.settings.move_seconds or len(self._order) or len(self._parking):
            return home
        better = self._mover.better_home(live, home, self.replicas.values())
        if better is None:
            return home
        self._move(live, home, better)
        self.counts.return_moves += 1
        return better

    def _bind_waiting(self, now: float, actions: list[Action]) -> None:
        """Bind parked trajectories, oldest first, then new ones; nothing new enters while anyone is parked."""
        while len(self._parking):
            live, home = self._parking.oldest()
            if home is not None and (self.replicas.get(home.name) is not home or not self._fits(live, home)):
                home = None
            if home is None:
                roomy = [each for each in self.replicas.values() if self._fits(live, each)]
                if not roomy:
                    return
                home = min(roomy, key=lambda each: (each.footprints, self._random.random()))
            self._parking.pop()
            home.bind(live)
            self._live[live.trajectory] = (live, home)
            self._dispatch(live, home, now, actions)
        if len(self._order):
            self._order.observe(self.replicas.values(), len(self._live))
        while (turn := self._order.peek()) is not None:
            footprint = self._footprints.reserved(turn.own_tokens, 0, turn.group)
            cap = self.settings.live_share(self.lengths.single_turn)
            target = place(self.replicas.values(), turn, footprint, self.settings, cap, self._random)
            if target is None:
                return
            self._order.pop()
            self._bindings += 1
            live = self._footprints.admitted(turn, self._bindings)
            target.bind(live)
            self._live[turn.trajectory] = (live, target)
            self._dispatch(live, target, now, actions)

    def _migrate(self, now: float, actions: list[Action]) -> None:
        """Refresh the finish estimates and abort one request that should go on elsewhere."""
        if len(self._order) or len(self._parking) or not self._live:
            return
        move = self._mover.best_migration([each for each in self.replicas.values() if not each.stalled], now)
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
        self.counts.dispatched += 1
        attempt = self.counts.dispatched
        self._requests[request_id] = _InFlight(live, state.name, attempt)
        if not state.in_flight:
            state.heard = now
        state.in_flight += 1
        live.dispatched, live.decoded, live.last_seen = True, 0, now
        late = self._order.overloaded and not live.turns
        actions.append(Dispatch(request_id, state.name, attempt, int(late)))

    def _move(self, live: Live, home: ReplicaState | None, target: ReplicaState) -> None:
        if home is not None:
            home.release(live)
        live.resident, live.cold = False, True
        target.bind(live)
        self._live[live.trajectory] = (live, target)

    def _fits(self, live: Live, state: ReplicaState) -> bool:
        cap = self.settings.live_share(self.lengths.single_turn)
        return state.has_room(live.footprint, live.shared, self.settings.kv_share, cap)
