"""The discrete-event loop: a workload, a routing policy and simulated replicas."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slipstream.core.rollout.policy import RoutingPolicyLike
from slipstream.core.rollout.requests import Abort, Dispatch, ReplicaId, Segment, Turn, TurnResult
from slipstream.core.rollout.simulation.engine import EngineModel, Replica, Running
from slipstream.core.rollout.simulation.workload import Trajectory, Workload

Probe = Callable[[ReplicaId, Sequence[Segment]], int]
"""Prompt tokens in the true cache of a replica: what a policy with perfect KV events knows."""
PolicyFactory = Callable[[Probe], RoutingPolicyLike]

REPORT_SECONDS = 1.0


@dataclass
class Outcome:
    """What a simulated step did and how long it took."""

    workload: str
    seconds: float = 0.0
    """Until the last trajectory ended."""

    trajectories: int = 0
    turns: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_tokens: int = 0
    unique_tokens: int = 0
    """Prompt tokens that any schedule must prefill once somewhere: each distinct token once."""

    preemptions: int = 0
    migrations: int = 0
    busy_share: float = 0.0
    turn_seconds: list[float] = field(default_factory=list, repr=False)
    returning_seconds: list[float] = field(default_factory=list, repr=False)

    @property
    def recomputed_tokens(self) -> int:
        """Prefill that a cache of unlimited size, shared by all replicas, would have saved."""
        return self.prefill_tokens - self.unique_tokens

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were found in a cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(slots=True, eq=False)
class _Live:
    trajectory: Trajectory
    own: int = 0
    turn: int = 0
    submitted: float = 0.0
    remaining: int = 0
    request_id: tuple[int, int] = (0, 0)
    current: Turn | None = None
    replica: Replica | None = None
    attempt: int = 0


class Cluster:
    """Runs one workload under one policy."""

    def __init__(
        self, workload: Workload, policy: PolicyFactory, models: Sequence[EngineModel], *, check: bool = False
    ) -> None:
        """
        :param models: one per replica.
        :param check: recount the replicas' bookkeeping from scratch while running (slow).
        """
        self.workload = workload
        self.replicas = {
            index: Replica(index, model, self._on_finished, self._on_prefilled) for index, model in enumerate(models)
        }
        self.policy = policy(lambda replica, prompt: self.replicas[replica].cache.cached_tokens(prompt))  # type: ignore[index]
        self.outcome = Outcome(workload.name)
        self._events: list[tuple[float, int, _Live | None]] = []
        self._count = 0
        self._live: dict[tuple[int, int], _Live] = {}
        self._left = len(workload.trajectories)
        self._check = check

    def run(self) -> Outcome:
        """Play the workload to its end.

        :raises RuntimeError: when nothing is left to happen and trajectories have not ended: the policy lost some.
        """
        for index, replica in self.replicas.items():
            self.policy.add_replica(index, replica.model.limits, 0.0)
        for trajectory in self.workload.trajectories:
            self._push(trajectory.arrival, _Live(trajectory))
        every = self.policy.poll_seconds
        if every is not None:
            self._push(every, None)
        now, reported = 0.0, 0.0
        replicas = list(self.replicas.values())
        while self._left:
            replica = min(replicas, key=lambda each: each.next_event)
            external = self._events[0][0] if self._events else float("inf")
            if min(replica.next_event, external) == float("inf"):
                raise RuntimeError(f"{self._left} trajectories never ended: the policy holds requests and nothing runs")
            if replica.next_event <= external:
                now = replica.next_event
                replica.advance_to(now)
                if self._check:
                    replica.recount()
            else:
                now = external
                timer = False
                while self._events and self._events[0][0] == now:
                    live = heapq.heappop(self._events)[2]
                    if live is None:
                        timer = True
                    else:
                        self._submit(live, now)
                if timer and every is not None:
                    self._push(now + every, None)
                    self._tell_progress(now)
                    if all(each.next_event == float("inf") for each in replicas) and len(self._events) == 1:
                        self._act(now)
                        if all(each.next_event == float("inf") for each in replicas):
                            raise RuntimeError(f"{self._left} trajectories never ended: the policy holds requests")
            if now - reported >= REPORT_SECONDS:
                reported = now
                for each in replicas:
                    self.policy.report(each.name, each.take_report(), now)
            self._act(now)
        return self._totals(now)

    def _push(self, time: float, live: _Live | None) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, live))

    def _submit(self, live: _Live, now: float) -> None:
        trajectory, work = live.trajectory, live.trajectory.turns[live.turn]
        live.own += work.input_tokens
        live.submitted = now
        live.remaining = work.output_tokens
        live.request_id = (trajectory.name, live.turn)
        live.current = self._turn(live)
        self._live[live.request_id] = live
        self.policy.submit(live.current, now)

    def _turn(self, live: _Live) -> Turn:
        trajectory = live.trajectory
        prompt = (*trajectory.shared, Segment(("own", trajectory.name), live.own))
        return Turn(live.request_id, trajectory.name, trajectory.group, prompt, live.turn == 0)

    def _act(self, now: float) -> None:
        for action in self.policy.poll(now):
            live = self._live[action.request_id]  # type: ignore[index]
            if isinstance(action, Dispatch):
                assert live.replica is None, f"{action} while {live.request_id} is still in flight"
                assert live.current is not None
                live.replica, live.attempt = self.replicas[action.replica], action.attempt  # type: ignore[index]
                live.replica.enqueue(Running(live.current, action.attempt, live.remaining, action.priority, now), now)
            elif isinstance(action, Abort) and live.replica is not None and live.attempt == action.attempt:
                running = live.replica.requests[live.request_id, action.attempt]
                self.outcome.migrations += 1
                live.replica.abort(running, now)

    def _tell_progress(self, now: float) -> None:
        for replica in self.replicas.values():
            for running in replica.requests.values():
                if running.decoding:
                    self.policy.progress(running.turn.request_id, replica.produced(running, now), now)

    def _on_prefilled(self, replica: Replica, running: Running, now: float) -> None:
        self.policy.progress(running.turn.request_id, 1, now)

    def _on_finished(self, replica: Replica, running: Running, now: float) -> None:
        live = self._live[running.turn.request_id]  # type: ignore[index]
        produced, aborted = running.produced_before, running.remaining > 0
        live.replica = None
        live.own += produced
        live.remaining = running.remaining
        last = live.turn + 1 == len(live.trajectory.turns)
        result = TurnResult(produced, last and not aborted, aborted, running.cached)
        assert self.policy.finished(live.request_id, running.attempt, result, now)
        if aborted:
            live.current = self._turn(live)
            return
        seconds = now - live.submitted
        self.outcome.turn_seconds.append(seconds)
        if live.turn:
            self.outcome.returning_seconds.append(seconds)
        self.outcome.turns += 1
        self.outcome.output_tokens += live.trajectory.turns[live.turn].output_tokens
        del self._live[live.request_id]
        if last:
            self._left -= 1
            self.outcome.trajectories += 1
        else:
            wait = live.trajectory.turns[live.turn].wait_seconds
            live.turn += 1
            self._push(now + wait, live)

    def _totals(self, now: float) -> Outcome:
        outcome = self.outcome
        outcome.seconds = now
        for replica in self.replicas.values():
            counters = replica.counters
            outcome.prompt_tokens += counters.prompt_tokens
            outcome.cached_tokens += counters.cached_tokens
            outcome.prefill_tokens += counters.prefill_tokens
            outcome.preemptions += counters.preemptions
            outcome.busy_share += counters.busy_seconds / now / len(self.replicas)
        outcome.unique_tokens = unique_prompt_tokens(self.workload)
        return outcome


def unique_prompt_tokens(workload: Workload) -> int:
    """Return the distinct prompt tokens of a workload: shared segments once, each trajectory's inputs once."""
    shared = {segment.key: segment.tokens for each in workload.trajectories for segment in each.shared}
    return sum(shared.values()) + sum(turn.input_tokens for each in workload.trajectories for turn in each.turns)
