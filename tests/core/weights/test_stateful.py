"""Any fault at any message leaves one whole version in every engine, and the next sound sync brings all up to date.

`fault_world.World.check` holds the invariants; it runs after every sync of every test here. Time is virtual, so lost
messages cost nothing and each run is the same. The exhaustive tests put one fault at every message of a sync; the state
machine mixes several with everything else that happens in a run. `SLIPSTREAM_FUZZ=500` makes it random and that long.
"""

from __future__ import annotations

import os
from functools import partial

import pytest
from fault_world import ENGINES, STEPS, World, trained
from faulty_net import KINDS, Fault
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

ONE, TWO = ("whole",), ("first half", "second half")
PLACES = [(ranks, kinds) for ranks in (1, 2) for kinds in (ONE, TWO)]
IDS = [f"{ranks} to {len(kinds)}" for ranks, kinds in PLACES]


def prepared(ranks, kinds, level, held, audit):
    """A world before the sync under test: engines with garbage, or with an earlier version and an update to come."""
    world = World(ranks, kinds, level)
    if held:
        world.heal()
        world.weights = trained(world.weights, "sparse", 1)
    world.set(audit_every=int(audit))
    return world


def behind(ranks, kinds, level):
    """A world whose last worker missed the last two of three versions, with an update to come."""
    world = World(ranks, kinds, level)
    world.heal()
    away = world.workers.pop()
    for step in range(2):
        world.weights = trained(world.weights, "sparse", step)
        world.heal()
    world.workers.append(away)
    world.weights = trained(world.weights, "sparse", 2)
    return world


def every_boundary(prepare, faults=KINDS):
    """One fault of each kind at each message of a world's next sync; how many messages that has."""
    messages = prepare().heal().messages
    failures = []
    for index in range(messages):
        for kind in faults:
            world = prepare()
            try:
                world.sync({index: Fault(kind)})
                assert world.net.hit == [kind]
                world.set(audit_every=0)
                world.weights = trained(world.weights, "sparse", 2)
                world.heal()
            except AssertionError as error:
                failures.append((index, kind, str(error)))
    assert not failures, failures
    return messages


@pytest.mark.parametrize(("ranks", "kinds"), PLACES, ids=IDS)
def test_one_fault_at_every_message_of_a_seed(ranks, kinds):
    seed = partial(prepared, ranks, kinds, level=0, held=False, audit=False)
    assert every_boundary(seed) == 9 * ranks * len(kinds)


@pytest.mark.parametrize(("ranks", "kinds"), PLACES, ids=IDS)
def test_one_fault_at_every_message_of_an_audited_delta(ranks, kinds):
    delta = partial(prepared, ranks, kinds, level=0, held=True, audit=True)
    assert every_boundary(delta) == 9 * ranks * len(kinds)


@pytest.mark.parametrize(("ranks", "kinds"), PLACES, ids=IDS)
@pytest.mark.parametrize("level", [1, 2])
def test_one_fault_at_every_message_of_a_delta_of_old_values(ranks, kinds, level):
    faults = ("lose", "truncate", "duplicate", "kill worker")  # the others are the same at every level
    delta = partial(prepared, ranks, kinds, level, held=True, audit=False)
    assert every_boundary(delta, faults) == 6 * ranks * len(kinds)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("level", [0, 2])
def test_one_fault_at_every_message_of_an_update_for_one_that_is_behind(ranks, level):
    """One worker gets a delta, the other all changes of three syncs."""
    reports = [outcome.value for outcome in behind(ranks, TWO, level).heal().trainer]
    assert [(r.late_workers, r.seeded_workers) for r in reports] == [(1, 0)] * ranks
    faults = KINDS if level == 0 else ("lose", "flip", "kill worker")
    assert every_boundary(partial(behind, ranks, TWO, level), faults) == 6 * ranks * 2


@pytest.mark.parametrize("kind", ["lose", "duplicate", "late", "kill worker"])
def test_two_faults_at_every_pair_of_messages(kind):
    """The second hits what the first made of the sync: an Abort, a Failed, another publisher's Commit."""
    for first in range(12):
        for second in range(first + 1, 14):
            world = prepared(2, ONE, 0, held=True, audit=False)
            world.sync({first: Fault("lose"), second: Fault(kind)})
            world.heal()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("index", [None, *range(24)])
def test_a_collective_that_only_some_ranks_finish(rank, index):
    """One rank counts the update as done, the other as failed: the workers have it, and each rank seeds or goes on."""
    world = prepared(2, TWO, 0, held=True, audit=False)
    faults = {} if index is None else {index: Fault("lose")}
    world.sync(faults, broken_collective=rank)
    world.weights = trained(world.weights, "sparse", 2)
    world.heal()


faults = st.dictionaries(
    st.integers(0, 40),
    st.builds(Fault, st.sampled_from(KINDS), st.integers(1, 30), st.floats(0, 1)),
    min_size=1,
    max_size=3,
)
seeds = st.integers(0, 1 << 20)


class SyncMachine(RuleBasedStateMachine):
    """A run in which everything goes wrong."""

    @initialize(
        ranks=st.integers(1, 2),
        kinds=st.sampled_from([ONE, TWO, ("whole", "whole"), ("whole", "partial")]),
        level=st.integers(0, 2),
        fresh=st.booleans(),
    )
    def start(self, ranks, kinds, level, fresh):
        self.world = World(ranks, kinds, level, fresh)

    def worker(self, index):
        return index % len(self.world.workers)

    @rule(how=st.sampled_from(STEPS), seed=seeds)
    def train(self, how, seed):
        self.world.weights = trained(self.world.weights, how, seed)

    @rule()
    def sync(self):
        self.world.heal()

    @rule(
        faults=faults,
        how=st.sampled_from(STEPS),
        seed=seeds,
        broken=st.sampled_from([None, None, 0, 1]),
        dense=st.sampled_from([None, None, False, True]),
    )
    def sync_with_faults(self, faults, how, seed, broken, dense):
        if dense is not None:
            self.world.heal()
            self.world.set(dense=dense)
        self.train(how, seed)
        self.world.sync(faults, broken)
        self.world.set(dense=False)

    @rule(index=st.integers(0, 2), after=st.integers(0, 12), torn=st.booleans(), faults=st.just({}) | faults)
    def sync_with_a_failing_loader(self, index, after, torn, faults):
        engine = self.world.workers[self.worker(index)].engine
        engine.fail_after, engine.torn = after, torn and after == 0
        if engine.torn:
            self.world.set(audit_every=0)  # an audit through a loader that tears tensors cannot be undone
        self.world.sync(faults)
        engine.fail_after, engine.torn = None, False

    @rule(index=st.integers(0, 2), keep=st.booleans())
    def replace_worker(self, index, keep):
        old = self.world.workers[self.worker(index)]
        memory = old.engine.tensors if keep else None
        self.world.workers[self.worker(index)] = self.world.new_worker(old.kind, memory)

    @rule(ranks=st.integers(1, 2))
    def restart_trainer(self, ranks):
        self.world.start_trainer(ranks)

    @precondition(lambda self: len(self.world.workers) < 3)
    @rule(kind=st.sampled_from(sorted(ENGINES)))
    def join(self, kind):
        self.world.workers.append(self.world.new_worker(kind))
        self.world.settle()

    @precondition(lambda self: len(self.world.workers) > 1)
    @rule(index=st.integers(0, 2))
    def leave(self, index):
        del self.world.workers[self.worker(index)]
        self.world.net.forget()

    @precondition(lambda self: len(self.world.workers) > 1)
    @rule(
        index=st.integers(0, 2),
        steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=3),
        faults=st.none() | faults,
    )
    def stay_away(self, index, steps, faults):
        """A worker misses some syncs, one of them perhaps with faults, and is there again."""
        index = self.worker(index)
        away = self.world.workers.pop(index)
        self.world.net.forget()
        for seed, how in enumerate(steps):
            self.train(how, seed)
            if faults is not None and seed == 0:
                self.world.sync(faults)
            self.world.heal()
        self.world.net.forget()
        others = {worker.kind for worker in self.world.workers}
        self.world.workers.insert(index, away)
        if away.kind not in others:  # it may take tensors that nobody took so far
            self.world.settle()

    @rule(index=st.integers(0, 2))
    def sleep(self, index):
        self.world.sleep(self.worker(index))

    @rule(index=st.integers(0, 2), name=st.sampled_from(["qkv", "embed", "norm", "flipped"]), faults=st.none() | faults)
    def replace_memory(self, index, name, faults):
        tensors = self.world.workers[self.worker(index)].engine.tensors
        tensors[name] = tensors[name].clone()
        if faults is not None:
            self.world.sync(faults)

    @rule()
    def other_table(self):
        self.world.other_table()
        self.world.settle()

    @rule(dense=st.booleans(), audit=st.booleans())
    def change_options(self, dense, audit):
        self.world.set(dense=dense, audit_every=int(audit))

    def teardown(self):
        if hasattr(self, "world"):
            self.world.heal()


FUZZ = int(os.environ.get("SLIPSTREAM_FUZZ", "0"))
TestSyncMachine = SyncMachine.TestCase
TestSyncMachine.settings = settings(
    derandomize=not FUZZ,
    database=None,
    max_examples=FUZZ or 40,
    stateful_step_count=16,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
