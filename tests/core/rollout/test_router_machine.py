"""Replicas join, leave, die and stall at any time: no request is lost, none answered twice, memory is respected."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slipstream.core.rollout import (
    Abort,
    CacheAwareRouter,
    Dispatch,
    LoadReport,
    ReplicaLimits,
    RouterSettings,
    Segment,
    Turn,
    TurnResult,
)

STALL = 50.0


@dataclass
class Client:
    """What the client of one trajectory knows."""

    name: int
    turns: int
    own: int = 100
    index: int = 0
    request: tuple[int, int] | None = None
    dispatch: Dispatch | None = None
    answered: int = 0


class RouterMachine(RuleBasedStateMachine):
    """Clients and engines around one router, in any order of events."""

    def __init__(self) -> None:
        super().__init__()
        self.router = CacheAwareRouter(RouterSettings(stall_seconds=STALL, seed=1))
        self.now = 0.0
        self.replicas = 0
        self.alive: set[Hashable] = set()
        self.clients: dict[int, Client] = {}
        self.aborting: set[tuple[Hashable, int]] = set()
        self.late: list[Dispatch] = []
        self.add_replica(2000, 2)

    def poll(self) -> None:
        for action in self.router.poll(self.now):
            client = self.clients.get(action.request_id[0])
            if isinstance(action, Abort):
                self.aborting.add((action.request_id, action.attempt))
                lost = action.replica not in self.alive or self.router.replicas[action.replica].stalled
                current = client.dispatch if client is not None else None
                if lost and client is not None and current is not None and current.attempt == action.attempt:
                    self.late.append(current)
                    client.dispatch = None
                continue
            assert client is not None, f"{action} for a trajectory that is gone"
            assert client.request == action.request_id, f"{action} answers nothing that {client} asked"
            assert action.replica in self.alive
            if client.dispatch is not None:  # taken from a lost replica; its abort comes in the same poll
                assert action.attempt > client.dispatch.attempt
                self.late.append(client.dispatch)
            client.dispatch = action

    @rule(kv=st.integers(500, 4000), running=st.integers(1, 4))
    def add_replica(self, kv: int, running: int) -> None:
        name = ("engine", self.replicas)
        self.replicas += 1
        self.alive.add(name)
        self.router.add_replica(name, ReplicaLimits(kv, running), self.now)
        self.poll()

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def lose_replica(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.discard(name)
        self.router.remove_replica(name, self.now)
        self.poll()

    @rule(count=st.integers(1, 4), turns=st.integers(1, 3), group=st.integers(0, 2))
    def start(self, count: int, turns: int, group: int) -> None:
        for _ in range(count):
            client = Client(len(self.clients), turns)
            self.clients[client.name] = client
            self._submit(client, group)
        self.poll()

    def _submit(self, client: Client, group: int = 0) -> None:
        client.request = (client.name, client.index)
        prompt = (Segment("system", 50), Segment(("own", client.name), client.own))
        self.router.submit(Turn(client.request, client.name, client.name % 3, prompt, client.index == 0), self.now)

    def _in_flight(self) -> list[Client]:
        return [client for client in self.clients.values() if client.dispatch is not None]

    @precondition(lambda self: self._in_flight())
    @rule(data=st.data(), tokens=st.integers(1, 400), partial=st.booleans())
    def answer(self, data: st.DataObject, tokens: int, partial: bool) -> None:
        client = data.draw(st.sampled_from(self._in_flight()))
        dispatch = client.dispatch
        assert dispatch is not None
        ended = client.index + 1 == client.turns
        aborted = partial and (dispatch.request_id, dispatch.attempt) in self.aborting
        client.dispatch = None
        client.own += tokens
        result = TurnResult(tokens, ended and not aborted, aborted)
        assert self.router.finished(dispatch.request_id, dispatch.attempt, result, self.now)
        if not aborted:
            client.answered += 1
            client.request = None
            client.index += 1
            assert not self.router.finished(dispatch.request_id, dispatch.attempt, result, self.now), "answered twice"
            if ended:
                client.turns = client.index
        self.poll()

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def late_answer(self, data: st.DataObject) -> None:
        dispatch = data.draw(st.sampled_from(self.late))
        assert not self.router.finished(dispatch.request_id, dispatch.attempt, TurnResult(5), self.now)

    def _in_tools(self) -> list[Client]:
        return [each for each in self.clients.values() if each.request is None and each.index < each.turns]

    @precondition(lambda self: self._in_tools())
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self._in_tools()))
        client.own += 20
        self._submit(client)
        self.poll()

    @precondition(lambda self: self._in_flight())
    @rule(data=st.data(), tokens=st.integers(1, 300))
    def progress(self, data: st.DataObject, tokens: int) -> None:
        client = data.draw(st.sampled_from(self._in_flight()))
        self.router.progress(client.request, tokens, self.now)

    @rule(seconds=st.floats(0.1, 30))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for name in sorted(self.alive):
            self.router.report(name, LoadReport(), self.now)
        self.poll()

    @rule()
    def stall(self) -> None:
        """Nobody is heard of for too long."""
        self.now += STALL + 1
        self.poll()

    @rule()
    def new_weights(self) -> None:
        self.router.weights_changed(1, self.now)

    @precondition(lambda self: any(each.request for each in self.clients.values()))
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([each for each in self.clients.values() if each.request]))
        self.router.end_trajectory(client.name, self.now)
        self.router.cancel(client.request, self.now)
        client.request, client.dispatch, client.turns = None, None, client.index
        self.poll()

    @invariant()
    def every_request_is_somewhere(self) -> None:
        asked = {client.request for client in self.clients.values() if client.request}
        assert set(self.router._attempts) == asked
        in_flight = {client.request for client in self._in_flight()}
        assert set(self.router._requests) == in_flight
        assert self.router.waiting == len(asked) - len(in_flight)

    @invariant()
    def sums_are_right(self) -> None:
        for state in self.router.replicas.values():
            live = state.live.values()
            assert state.own == sum(each.own for each in live)
            assert abs(state.footprints - sum(each.footprint for each in live)) < 1e-6
            shared = {segment for each in live for segment in each.shared}
            assert state.shared == sum(segment.tokens for segment in shared)
            flying = [each for each in self._in_flight() if each.dispatch and each.dispatch.replica == state.name]
            assert state.in_flight == len(flying)
            assert sum(state.groups.values()) == len(live)

    def teardown(self) -> None:
        """With one replica that works, everything ends: nothing was lost."""
        if not self.alive:
            self.add_replica(3000, 4)
        for _ in range(10_000):
            self.now += 1.0
            for name in sorted(self.alive):
                self.router.report(name, LoadReport(), self.now)
            self.poll()
            for client in self._in_flight():
                dispatch, ended = client.dispatch, client.index + 1 == client.turns
                assert dispatch is not None
                client.dispatch = client.request = None
                client.index += 1
                client.answered += 1
                assert self.router.finished(dispatch.request_id, dispatch.attempt, TurnResult(10, ended), self.now)
            for client in self._in_tools():
                self._submit(client)
            if not any(client.request for client in self.clients.values()):
                break
        assert not self.router.waiting
        assert all(client.index == client.turns for client in self.clients.values())
        assert not any(state.live for state in self.router.replicas.values())


TestRouterMachine = RouterMachine.TestCase
TestRouterMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
