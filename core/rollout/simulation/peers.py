"""Routing policies of other projects, re-derived from their published behaviour; they bind every turn at once."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from slipstream.core.rollout.requests import (
    Action,
    Dispatch,
    LoadReport,
    ReplicaId,
    ReplicaLimits,
    RequestId,
    Segment,
    TrajectoryId,
    Turn,
    TurnResult,
)
from slipstream.core.rollout.simulation.cluster import Probe


@dataclass(slots=True)
class _InFlight:
    turn: Turn
    replica: ReplicaId
    attempt: int
    uncached: int = 0
    prefilling: bool = True


class Peer:
    """Bookkeeping that all peers share; `choose` is the peer.

    :param probe: the true cache, for peers that read KV events.
    :param priority: returning turns first in the engine's queue; no peer does this by itself.
    """

    poll_seconds: float | None = None

    def __init__(self, probe: Probe, seed: int = 0, *, priority: bool = False) -> None:
        self.probe = probe
        self.random = random.Random(seed)
        self.limits: dict[ReplicaId, ReplicaLimits] = {}
        self.in_flight: dict[ReplicaId, int] = {}
        self.prefill: dict[ReplicaId, int] = {}
        """Uncached tokens of the requests in flight that have no output yet."""
        self.requests: dict[RequestId, _InFlight] = {}
        self._priority = priority
        self._attempts = 0
        self._new: list[Turn] = []

    def candidates(self, turn: Turn) -> Sequence[ReplicaId]:
        """Return the replicas that the peer may choose: several where it decides by chance or by map order."""
        raise NotImplementedError

    def chosen(self, turn: Turn, replica: ReplicaId) -> None:
        """Remember a decision."""

    def left(self, turn: Turn, replica: ReplicaId, ended: bool) -> None:
        """Remember the end of a request."""

    def add_replica(self, replica: ReplicaId, limits: ReplicaLimits, now: float) -> None:
        self.limits[replica] = limits
        self.in_flight[replica] = self.prefill[replica] = 0

    def remove_replica(self, replica: ReplicaId, now: float) -> None:
        del self.limits[replica], self.in_flight[replica], self.prefill[replica]
        lost = [each for each in self.requests.values() if each.replica == replica]
        for each in lost:
            del self.requests[each.turn.request_id]
            self._new.append(each.turn)

    def submit(self, turn: Turn, now: float) -> None:
        self._new.append(turn)

    def progress(self, request_id: RequestId, output_tokens: int, now: float) -> None:
        record = self.requests.get(request_id)
        if record is not None and record.prefilling:
            record.prefilling = False
            self.prefill[record.replica] -= record.uncached

    def finished(self, request_id: RequestId, attempt: int, result: TurnResult, now: float) -> bool:
        record = self.requests.get(request_id)
        if record is None or record.attempt != attempt:
            return False
        self.progress(request_id, result.output_tokens, now)
        del self.requests[request_id]
        self.in_flight[record.replica] -= 1
        self.left(record.turn, record.replica, result.ended)
        return True

    def cancel(self, request_id: RequestId, now: float) -> None:
        self._new = [turn for turn in self._new if turn.request_id != request_id]
        record = self.requests.get(request_id)
        if record is not None:
            self.finished(request_id, record.attempt, TurnResult(0), now)

    def end_trajectory(self, trajectory: TrajectoryId, now: float) -> None:
        pass

    def report(self, replica: ReplicaId, load: LoadReport, now: float) -> None:
        pass

    def weights_changed(self, version: int, now: float) -> None:
        pass

    def poll(self, now: float) -> Sequence[Action]:
        actions = []
        for turn in self._new:
            options = self.candidates(turn)
            replica = options[0] if len(options) == 1 else self.random.choice(options)
            actions.append(self.bind(turn, replica))
        self._new.clear()
        return actions

    def bind(self, turn: Turn, replica: ReplicaId) -> Dispatch:
        """Send a turn to a replica, whoever chose it."""
        self._attempts += 1
        uncached = turn.tokens - self.probe(replica, turn.prompt)
        self.requests[turn.request_id] = _InFlight(turn, replica, self._attempts, uncached)
        self.in_flight[replica] += 1
        self.prefill[replica] += uncached
        self.chosen(turn, replica)
        return Dispatch(turn.request_id, replica, self._attempts, int(turn.first) if self._priority else 0)

    def least(self, score: dict[ReplicaId, float] | dict[ReplicaId, int]) -> list[ReplicaId]:
        """Return the replicas of the smallest score."""
        lowest = min(score.values())
        return [replica for replica, value in score.items() if value == lowest]


class RoundRobin(Peer):
    """Every turn to the next replica."""

    def __init__(self, probe: Probe, seed: int = 0, *, priority: bool = False) -> None:
        super().__init__(probe, seed, priority=priority)
        self._next = 0

    def candidates(self, turn: Turn) -> Sequence[ReplicaId]:
        replicas = list(self.in_flight)
        return [replicas[self._next % len(replicas)]]

    def chosen(self, turn: Turn, replica: ReplicaId) -> None:
        self._next += 1


class VerlSticky(Peer):
    """verl 0.9.1 `GlobalRequestLoadBalancer`: least in flight at the first turn, ties at random, then the same one.

    The map of trajectories forgets the one used longest ago beyond 10,000.
    """

    SESSIONS = 10_000

    def __init__(self, probe: Probe, seed: int = 0, *, priority: bool = False) -> None:
        super().__init__(probe, seed, priority=priority)
        self._home: OrderedDict[TrajectoryId, ReplicaId] = OrderedDict()

    def candidates(self, turn: Turn) -> Sequence[ReplicaId]:
        home = self._home.get(turn.trajectory)
        return [home] if home in self.in_flight else self.least(self.in_flight)

    def chosen(self, turn: Turn, replica: ReplicaId) -> None:
        self._home[turn.trajectory] = replica
        self._home.move_to_end(turn.trajectory)
        if len(self._home) > self.SESSIONS:
            self._home.popitem(last=False)


class StickyLeastLoaded(Peer):
    """SkyRL (#1791) and vllm-router `sticky_least_loaded`: fewest active sessions at the first turn, then the same.

    There a tie goes to the highest hash of session and replica, here to chance.
    """

    def __init__(self, probe: Probe, seed: int = 0, *, priority: bool = False) -> None:
        super().__init__(probe, seed, priority=priority)
        self._home: dict[TrajectoryId, ReplicaId] = {}
        self._sessions: dict[ReplicaId, int] = {}

    def add_replica(self, replica: ReplicaId, limits: ReplicaLimits, now: float) -> None:
        super().add_replica(replica, limits, now)
        self._sessions[replica] = 0

    def remove_replica(self, replica: ReplicaId, now: float) -> None:
        super().remove_replica(replica, now)
        del self._sessions[replica]

    def candidates(self, turn: Turn) -> Sequence[ReplicaId]:
        home = self._home.get(turn.trajectory)
        return [home] if home in self._sessions else self.least(self._sessions)

    def chosen(self, turn: Turn, replica: ReplicaId) -> None:
        if self._home.get(turn.trajectory) != replica:
            self._home[turn.trajectory] = replica
            self._sessions[replica] += 1

    def left(self, turn: Turn, replica: ReplicaId, ended: bool) -> None:
        if ended and self._home.pop(turn.trajectory, None) in self._sessions:
            self._sessions[replica] -= 1


@dataclass(slots=True)
class _Tenants:
    """A node of the approximate tree: how far each replica's prompts reached, the latest last."""

    reach: dict[ReplicaId, int] = field(default_factory=dict)
    children: dict[Hashable, _Tenants] = field(default_factory=dict)


class SglangCacheAware(Peer):
    """sglang-router 0.3.2 `cache_aware` with the defaults of its command line.

    When in-flight counts differ by more than 64 and 1.5 times: least in flight. Else, when more than 0.3 of the prompt
    matches a tree of past prompts: the replica that was last at the end of the match. Else least in flight. The tree
    is never told of evictions or weight updates. Counted in tokens instead of characters, and never trimmed.
    """

    CACHE, ABSOLUTE, RELATIVE = 0.3, 64, 1.5

    def __init__(self, probe: Probe, seed: int = 0, *, priority: bool = False) -> None:
        super().__init__(probe, seed, priority=priority)
        self._tree = _Tenants()

    def candidates(self, turn: Turn) -> Sequence[ReplicaId]:
        low, high = min(self.in_flight.values()), max(self.in_flight.values())
        if high - low > self.ABSOLUTE and high > self.RELATIVE * low:
            return self.least(self.in_flight)
        matched, tenant = self._match(turn.prompt)
        if matched > self.CACHE * turn.tokens and tenant in self.in_flight:
            return [tenant]
        return self.least(self.in_flight)

    def chosen(self, turn: Turn, replica: ReplicaId) -> None:
        node = self._tree
        for key, tokens in turn.prompt:
            node = node.children.setdefault(key, _Tenants())
            reach = max(tokens, node.reach.pop(replica, 0))
            node.reach[replica] = reach  # popped and set again: the latest is last

    def _match(self, prompt: Sequence[Segment]) -> tuple[int, ReplicaId]:
        node, matched = self._tree, 0
        tenant: ReplicaId = None
        for key, tokens in prompt:
            child = node.children.get(key)
            if child is None or not child.reach:
                break
            furthest = min(tokens, max(child.reach.values()))
            if furthest:
                matched += furthest
                tenant = next(each for each, reach in reversed(child.reach.items()) if reach >= furthest)
            if furthest < tokens:
                break
            node = child
        return matched, tenant


class VllmKvAware(Peer):
    """vllm-router 0.1.17 `kv_aware`: least (uncached + active prefill tokens) x (active requests + 1)."""

    def candidates(self, turn: Turn) -> Sequence[ReplicaId]:
        tokens = turn.tokens
        return self.least(
            {
                replica: (tokens - self.probe(replica, turn.prompt) + self.prefill[replica]) * (active + 1)
                for replica, active in self.in_flight.items()
            }
        )


class DynamoKvRouter(Peer):
    """NVIDIA Dynamo's KV router at temperature 0 and its default weights.

    Least (active prefill tokens + prompt) / block - overlap blocks + decode blocks; decode blocks are those of the
    requests in flight there with this one, shared blocks once.
    """

    BLOCK = 16

    def __init__(self, probe: Probe, seed: int = 0, *, priority: bool = False) -> None:
        super().__init__(probe, seed, priority=priority)
        self._uses: dict[ReplicaId, dict[Hashable, list[int]]] = {}
        self._tokens: dict[ReplicaId, int] = {}

    def add_replica(self, replica: ReplicaId, limits: ReplicaLimits, now: float) -> None:
        super().add_replica(replica, limits, now)
        self._uses[replica] = {}
        self._tokens[replica] = 0

    def candidates(self, turn: Turn) -> Sequence[ReplicaId]:
        score = {}
        tokens = turn.tokens
        for replica in self.in_flight:
            uses = self._uses[replica]
            resident = self._tokens[replica]
            decode = resident + sum(size for key, size in turn.prompt if key not in uses)
            overlap = self.probe(replica, turn.prompt)
            prefill = max(0, self.prefill[replica] + tokens - overlap)
            score[replica] = prefill // self.BLOCK + decode // self.BLOCK
        return self.least(score)

    def chosen(self, turn: Turn, replica: ReplicaId) -> None:
        uses = self._uses[replica]
        for key, tokens in turn.prompt:
            entry = uses.setdefault(key, [0, tokens])
            if not entry[0]:
                self._tokens[replica] += tokens
            entry[0] += 1

    def left(self, turn: Turn, replica: ReplicaId, ended: bool) -> None:
        uses = self._uses[replica]
        for key, _ in turn.prompt:
            entry = uses[key]
            entry[0] -= 1
            if not entry[0]:
                self._tokens[replica] -= entry[1]
                del uses[key]


PEERS: dict[str, type[Peer]] = {
    "round_robin": RoundRobin,
    "verl": VerlSticky,
    "skyrl": StickyLeastLoaded,
    "sglang": SglangCacheAware,
    "vllm_kv_aware": VllmKvAware,
    "dynamo": DynamoKvRouter,
}
"""The six peers by the name that ``slipstream replay --policy`` takes."""
