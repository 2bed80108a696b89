"""The arbiter in virtual time: its promises hold after every step of any history."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slipstream.core.graph import Arbiter, Directive, DirectiveKind, Lane, LeaseError, LongestPathFirst, Request

WORKERS = 3
ALL = frozenset(range(WORKERS))


def rollout(pipeline: str, workers=ALL, memory=0.4) -> Request:
    return Request(pipeline, Lane.ROLLOUT, "rollout", frozenset(workers), 1, memory)


def gang(pipeline: str, workers=ALL, memory=0.6) -> Request:
    return Request(pipeline, Lane.GANG, "train", frozenset(workers), len(workers), memory)


def check(arbiter: Arbiter) -> None:
    for worker in range(arbiter.workers):
        here = [lease for lease in arbiter.leases if worker in lease.workers]
        assert len(here) <= 2
        assert sum(lease.request.memory for lease in here) <= 1.0 + 1e-9
        if len(here) == 2:
            assert arbiter.corun
            assert {lease.request.lane for lease in here} == set(Lane)
    keys = [(lease.request.pipeline, lease.request.lane) for lease in arbiter.leases]
    assert len(keys) == len(set(keys))
    for lease in arbiter.leases:
        assert lease.workers
        assert lease.workers <= lease.request.wanted
        if lease.request.lane is Lane.GANG:
            assert lease.workers == lease.request.wanted


def test_a_rollout_and_a_gang_share_workers_but_two_of_a_kind_do_not():
    arbiter = Arbiter(WORKERS)
    first = arbiter.ask(rollout("a"), 0.0)
    assert first is not None
    assert first.workers == ALL
    assert first.share == 1.0
    beside = arbiter.ask(gang("b"), 0.0)
    assert beside is not None
    assert beside.share < 1.0
    assert arbiter.ask(rollout("b"), 0.0) is None
    assert arbiter.ask(gang("c"), 0.0) is None
    arbiter.release(beside.id, 1.0)
    assert [lease.request.pipeline for lease in arbiter.leases] == ["a", "c"]
    check(arbiter)


def test_who_has_most_left_goes_first():
    arbiter = Arbiter(None, advisor=LongestPathFirst())
    held = arbiter.ask(gang("a", {1 << 50}, 1.0), 0.0)
    assert held is not None
    for name, left in (("short", 10.0), ("long", 90.0), ("unknown", 0.0)):
        request = Request(name, Lane.GANG, "train", frozenset({1 << 50}), 1, 1.0, left)
        assert arbiter.ask(request, 1.0) is None
    rollouts = Request("r", Lane.ROLLOUT, "rollout", frozenset({1 << 50}), 1, 0.5, 1000.0)
    assert arbiter.ask(rollouts, 1.0) is None
    order = []
    while arbiter.leases:
        order.append(arbiter.leases[0].request.pipeline)
        arbiter.release(arbiter.leases[0].id, 2.0)
    assert order == ["a", "long", "short", "unknown", "r"]


def test_a_request_that_is_cancelled_holds_nobody_up():
    arbiter = Arbiter(WORKERS, patience=0)
    held = arbiter.ask(rollout("a", {0}), 0.0)
    assert held is not None
    assert arbiter.ask(rollout("b", {0, 1}), 1.0) is not None, "one of two is enough"
    assert arbiter.ask(gang("c", {1, 2}, 0.7), 2.0) is None
    assert arbiter.ask(gang("d", {2}), 3.0) is None, "overdue at once: its workers are reserved"
    arbiter.cancel("c", Lane.GANG, 4.0)
    assert [lease.request.pipeline for lease in arbiter.leases] == ["a", "b", "d"]
    arbiter.cancel("d", Lane.GANG, 5.0)
    assert len(arbiter.leases) == 3, "what was granted stays"
    check(arbiter)


def test_memory_is_admitted_before_anything_starts():
    arbiter = Arbiter(WORKERS)
    assert arbiter.ask(rollout("a", memory=0.5), 0.0) is not None
    assert arbiter.ask(gang("b", memory=0.6), 0.0) is None


def test_without_co_run_a_gang_makes_rollouts_pause():
    arbiter = Arbiter(WORKERS, corun=False)
    lease = arbiter.ask(rollout("a"), 0.0)
    assert lease is not None
    assert arbiter.ask(gang("b"), 1.0) is None
    assert arbiter.renew(lease.id, 2.0) == Directive(DirectiveKind.PAUSE, lease.id)
    arbiter.release(lease.id, 3.0)
    granted = arbiter.ask(gang("b"), 3.0)
    assert granted is not None
    assert granted.workers == ALL


def test_workers_given_back_by_a_merge_go_to_whoever_waits():
    arbiter = Arbiter(WORKERS)
    lease = arbiter.ask(rollout("a"), 0.0)
    assert lease is not None
    assert arbiter.ask(rollout("b"), 0.0) is None
    arbiter.direct(Directive(DirectiveKind.MERGE, lease.id, frozenset({0})))
    directive = arbiter.renew(lease.id, 1.0)
    assert directive is not None
    assert directive.workers == {0}
    arbiter.release(lease.id, 2.0, frozenset({1, 2}))
    assert arbiter.renew(lease.id, 2.0) is None
    granted = arbiter.ask(rollout("b"), 2.0)
    assert granted is not None
    assert granted.workers == {1, 2}


def test_a_silent_holder_loses_its_workers_and_is_told_when_it_comes_back():
    arbiter = Arbiter(WORKERS, lease_seconds=10.0)
    dead = arbiter.ask(gang("a"), 0.0)
    assert dead is not None
    assert arbiter.ask(gang("b"), 9.0) is None
    granted = arbiter.ask(gang("b"), 10.0)
    assert granted is not None
    with pytest.raises(LeaseError, match="ended or expired"):
        arbiter.renew(dead.id, 11.0)
    arbiter.release(dead.id, 11.0)  # harmless
    assert arbiter.leases == (granted,)


def test_a_lost_answer_is_given_again():
    arbiter = Arbiter(WORKERS)
    assert arbiter.ask(gang("a"), 0.0) == arbiter.ask(gang("a"), 1.0)
    with pytest.raises(LeaseError, match="release it before"):
        arbiter.ask(gang("a", {0}), 1.0)


def test_a_new_arbiter_adopts_what_is_running():
    arbiter = Arbiter(WORKERS)
    arbiter.adopt(rollout("a"), ALL, 0.0)
    arbiter.adopt(gang("b"), ALL, 0.0)
    assert arbiter.ask(gang("c"), 1.0) is None
    with pytest.raises(LeaseError, match="to adopt"):
        arbiter.adopt(gang("b"), ALL, 1.0)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (rollout("a", {0, 3}), "expected workers from 0 to 2"),
        (rollout("a", ()), "expected workers"),
        (rollout("a", memory=1.5), "share of memory"),
        (Request("a", Lane.GANG, "train", ALL, 2, 0.5), "a gang to need all"),
        (Request("a", Lane.ROLLOUT, "rollout", ALL, 0, 0.5), "expected 1 to 3 workers"),
    ],
)
def test_what_can_never_be_granted_is_refused(request_, message):
    with pytest.raises(LeaseError, match=message):
        Arbiter(WORKERS).ask(request_, 0.0)


class Histories(RuleBasedStateMachine):
    """Pipelines ask, renew, give back, fall silent; anything at any time."""

    @initialize(corun=st.booleans(), patience=st.integers(1, 4))
    def begin(self, corun, patience):
        self.arbiter = Arbiter(WORKERS, lease_seconds=10.0, patience=patience, corun=corun)
        self.now = 0.0

    @rule(
        pipeline=st.sampled_from("abcd"),
        lane=st.sampled_from(Lane),
        workers=st.sets(st.integers(0, WORKERS - 1), min_size=1),
        memory=st.sampled_from([0.2, 0.5, 0.8]),
    )
    def ask(self, pipeline, lane, workers, memory):
        make = rollout if lane is Lane.ROLLOUT else gang
        held = [x for x in self.arbiter.leases if (x.request.pipeline, x.request.lane) == (pipeline, lane)]
        try:
            lease = self.arbiter.ask(make(pipeline, workers, memory), self.now)
        except LeaseError:
            assert held
        else:
            assert lease is None or lease in self.arbiter.leases

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 11.0]))
    def wait(self, seconds):
        self.now += seconds
        self.arbiter.tick(self.now)
        assert all(lease.expires > self.now for lease in self.arbiter.leases)

    @precondition(lambda self: self.arbiter.leases)
    @rule(data=st.data())
    def renew(self, data):
        lease = data.draw(st.sampled_from(self.arbiter.leases))
        directive = self.arbiter.renew(lease.id, self.now)
        assert directive is None or lease.request.lane is Lane.ROLLOUT

    @precondition(lambda self: self.arbiter.leases)
    @rule(data=st.data())
    def give_back(self, data):
        lease = data.draw(st.sampled_from(self.arbiter.leases))
        part = data.draw(st.sets(st.sampled_from(sorted(lease.workers)), min_size=1))
        self.arbiter.release(lease.id, self.now, frozenset(part) if lease.request.lane is Lane.ROLLOUT else None)

    @rule(pipeline=st.sampled_from("abcd"))
    def leave(self, pipeline):
        self.arbiter.withdraw(pipeline, self.now)
        assert all(lease.request.pipeline != pipeline for lease in self.arbiter.leases)

    @invariant()
    def promises_hold(self):
        check(self.arbiter)

    @invariant()
    def nothing_that_could_run_waits_for_nothing(self):
        """With nobody running, whoever waits first is granted at once."""
        assert self.arbiter.leases or not self.arbiter.waiting


Histories.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase


def drive(arbiter: Arbiter, pipelines: dict[str, float], steps: int, seed: int, deaths: float = 0.0) -> dict[str, int]:
    """Pipelines that roll out and train in a loop, obey directives, and sometimes die without a word; returns the steps
    each finished. Every pipeline acts once a second, in random order."""
    choose = random.Random(seed)
    state = dict.fromkeys(pipelines, "rollout")
    lease = dict.fromkeys(pipelines)
    left = dict.fromkeys(pipelines, 0.0)
    silent = dict.fromkeys(pipelines, -1.0)
    done = dict.fromkeys(pipelines, 0)
    for now in itertools.count():
        if min(done.values()) >= steps:
            return done
        assert now < 5000, f"nobody moves: {done}, waiting {arbiter.waiting}, leases {arbiter.leases}"
        for name in choose.sample(sorted(pipelines), len(pipelines)):
            if now < silent[name]:
                continue
            if lease[name] is None:
                make = rollout if state[name] == "rollout" else gang
                lease[name] = arbiter.ask(make(name, memory=pipelines[name]), float(now))
                left[name] = left[name] or float(choose.randint(1, 6))
                continue
            if deaths and choose.random() < deaths:
                silent[name], lease[name], left[name], state[name] = now + 25.0, None, 0.0, "rollout"
                arbiter_ends = [each for each in arbiter.leases if each.request.pipeline == name]
                assert arbiter_ends  # it holds on until the lease expires
                continue
            directive = arbiter.renew(lease[name].id, float(now))
            check(arbiter)
            left[name] -= 1.0
            if left[name] <= 0 or directive is not None:
                arbiter.release(lease[name].id, float(now))
                lease[name] = None
                if left[name] <= 0:
                    done[name] += state[name] == "train"
                    state[name] = "train" if state[name] == "rollout" else "rollout"
                    left[name] = 0.0
    raise AssertionError


@pytest.mark.parametrize("corun", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_every_pipeline_gets_on(corun, seed):
    """No deadlock, no starvation: with memory that forbids sharing for some, all finish their steps about evenly."""
    arbiter = Arbiter(WORKERS, lease_seconds=10.0, patience=4, corun=corun)
    done = drive(arbiter, {"a": 0.4, "b": 0.6, "c": 0.9, "d": 0.2}, steps=12, seed=seed)
    assert max(done.values()) <= 4 * 12


@pytest.mark.parametrize("seed", range(5))
def test_holders_that_die_delay_the_others_by_a_lease(seed):
    arbiter = Arbiter(WORKERS, lease_seconds=10.0, patience=4)
    done = drive(arbiter, {"a": 0.4, "b": 0.6, "c": 0.9}, steps=6, seed=seed, deaths=0.02)
    assert min(done.values()) >= 6
