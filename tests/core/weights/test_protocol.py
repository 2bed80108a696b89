"""The conversation table, and what was once wrong around it: one test for each bug that `test_stateful` or a reading
of the code has found."""

from __future__ import annotations

import pytest
import torch
from fault_world import TIMEOUT, World, trained
from faulty_net import Fault
from toy_engine import Pair, ToyEngine, checkpoint

from slipstream.core.weights import EngineFailedError, InProcessHub, Publisher, PublisherSettings, Subscriber, SyncError
from slipstream.core.weights.conversation import STEPS, Conversation, State
from slipstream.core.weights.delivery import Delivery
from slipstream.core.weights.errors import (
    DamagedMessageError,
    LayoutChangedError,
    SyncTimeoutError,
    UncertainCommitError,
)
from slipstream.core.weights.feed import Feed
from slipstream.core.weights.messages import Abort, Applied, Begin, Commit, Done, Failed, Hello, decode, encode
from slipstream.core.weights.roster import Roster

TWO = ("first half", "second half")


def test_every_state_is_reached_and_nothing_is_final_without_a_commit():
    reached, open_ends = {State.NEW}, [State.NEW]
    while open_ends:
        for step, state in STEPS[open_ends.pop()].items():
            if step is not Commit and state not in reached:
                reached.add(state)
                open_ends.append(state)
    assert set(State) - reached == {State.DECIDED, State.HELD, State.AUDITING, State.ENDED}
    assert set(STEPS) == set(State)
    assert {state for steps in STEPS.values() for state in steps.values()} == set(State) - {State.NEW, State.ENDED}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("last_word", [Abort, Failed])
def test_either_end_can_give_up_at_any_time(state, last_word):
    talk = Conversation(1)
    talk.state = state
    talk.step(last_word)
    assert talk.state is State.ENDED


def test_a_message_out_of_turn_is_named():
    talk = Conversation(1)
    talk.step(Hello)
    with pytest.raises(SyncError, match="expected Table or Begin, got Commit"):
        talk.step(Commit)


class Scripted:
    """A channel that says what it was given; a publisher's when `peer` is set."""

    def __init__(self, *messages, peer=None):
        self.messages, self.sent, self.peer = list(messages), [], peer

    def send(self, *data):
        self.sent.append(data[-1])

    def receive(self, timeout):
        if not self.messages:
            raise SyncTimeoutError("the script is over")
        data = self.messages.pop(0)
        return data if self.peer is None else (self.peer, data)


def test_a_verdict_of_an_earlier_sync_does_not_commit_this_one():
    channel = Scripted()
    feed = Feed(channel)
    feed.send(Hello("w", None, None, None))
    for step in (Begin, Applied):
        feed.talk.step(step)
    channel.messages = [encode(Commit(False), 5), encode(Abort("no"), feed.talk.exchange)]
    with pytest.raises(SyncError, match="aborted the sync: no"):
        feed.expect(Commit, 1.0)


def test_an_acknowledgement_of_an_earlier_sync_is_not_taken_for_this_one():
    publisher = Publisher(PublisherSettings(timeout=1.0))
    update = publisher.stage(checkpoint().items())
    roster = Roster()
    roster.add("w", "digest", ())
    hello = encode(Hello("w", None, None, update.table.digest), 7)
    channel = Scripted(
        encode(Applied(b"old", 0.0, 0.0), 6), hello, encode(Done(1), 6), encode(Failed("old", ""), 6), peer=b"w"
    )
    delivery = Delivery(channel, update.table, 1.0, 0)
    delivery.handshake(1, roster, lambda layout: ())
    assert delivery.peers[b"w"].talk.state is State.GREETED
    with pytest.raises(SyncTimeoutError):
        delivery._next()


def test_a_worker_that_joins_in_the_middle_is_sent_away_and_the_others_go_on():
    channel = Scripted(encode(Hello("w", None, None, None), 1), encode(Hello("x", None, None, None), 2), peer=b"w")
    update = Publisher(PublisherSettings()).stage(checkpoint().items())
    delivery = Delivery(channel, update.table, 1.0, 0)
    delivery._next(meeting=True)
    with pytest.raises(SyncTimeoutError):
        delivery._next()
    message, exchange = decode(channel.sent[-1])
    assert isinstance(message, Abort)
    assert exchange == 2
    assert delivery.peers[b"w"].hello.worker == "w"


def test_units_that_one_rank_could_not_tell_are_told_again():
    """The worker said that it knew the table, but had lost the units of rank 1: one more sync failed."""
    for index in range(8):
        world = World(2, ("whole",))
        world.sync({index: Fault("lose")})
        world.heal()


def test_every_worker_reads_an_audit_in_the_order_of_the_ranks(monkeypatch):
    """Two workers that heard the commits in different orders waited for different broadcasts, for ever."""
    late: list[Feed] = []
    orders: list[list[int]] = []
    expect, audit = Feed.expect, Subscriber._audit

    def expect_late(self, kind, timeout):
        if kind is Commit and self.begin.sender == 0 and self not in late:
            late.append(self)
            raise SyncTimeoutError("the verdict of rank 0 comes after that of rank 1")
        return expect(self, kind, timeout)

    def audit_noted(self, feeds, timeout):
        orders.append([feed.begin.sender for feed in feeds])
        audit(self, feeds, timeout)

    monkeypatch.setattr(Feed, "expect", expect_late)
    monkeypatch.setattr(Subscriber, "_audit", audit_noted)
    world = World(2, ("whole",))
    world.set(audit_every=1)
    world.heal()
    assert late
    assert orders == [[0, 1]]


@pytest.mark.parametrize("level", [0, 2])
def test_two_trainers_with_other_shards_may_take_turns(level):
    """The second trainer's units replaced the first one's in the worker, and the first was not asked to repeat them."""
    world = World(1, ("whole",), level)
    world.heal()
    first = world.publishers, world.senders
    world.start_trainer(2)
    world.heal()
    world.ranks, (world.publishers, world.senders) = 1, first
    for step in range(2):
        world.weights = trained(world.weights, "sparse", step)
        world.heal()


def test_an_update_is_delivered_once():
    """A second delivery sent no changes, and both ends agreed on the old weights under the new version."""
    pair = Pair([ToyEngine()])
    pair.sync(checkpoint())
    moved = trained(checkpoint(), "sparse", 1)
    update = pair.publisher.stage(moved.items())
    pair.publisher.stage(trained(moved, "sparse", 2).items())
    votes = []
    for _ in range(2):
        with pytest.raises(SyncError, match="stage the weights again"):
            pair.publisher.deliver(update, InProcessHub(), 1, lambda ready: votes.append(ready) or ready)
    assert votes == [False, False]
    assert pair.sync(moved).changed_elements > 0
    assert pair.holds(moved)


class BrokenAbort(InProcessHub):
    def send(self, peer, data):
        if b"Abort" in data:
            raise OSError("socket is gone")
        super().send(peer, data)


def test_other_ranks_hear_of_a_failure_though_the_abort_cannot_be_sent():
    """They waited in the collective for a rank that had failed while it said goodbye."""
    pair = Pair([ToyEngine(0, 2), ToyEngine(1, 2)])
    pair.engines[0].fail_after = 0
    votes = []
    with pytest.raises(EngineFailedError):
        pair.sync(checkpoint(), BrokenAbort(), 1.0, agree=lambda ready: votes.append(ready) or ready)
    assert votes == [False]


class GoneAfterApplied(InProcessHub):
    def send(self, peer, data):
        if peer == b"worker 0" and b"Commit" in data:
            raise SyncTimeoutError("worker 0 is gone")
        super().send(peer, data)


def test_a_worker_that_is_gone_does_not_keep_the_commit_from_the_others():
    """They waited for it in vain, went back, and had to be seeded."""
    pair = Pair([ToyEngine(0, 2), ToyEngine(1, 2)])
    pair.sync(checkpoint())
    moved = trained(checkpoint(), "sparse", 1)
    with pytest.raises(UncertainCommitError, match="worker 0 is gone"):
        pair.sync(moved, GoneAfterApplied(), 0.3)
    assert [s.version for s in pair.subscribers] == [None, 2]  # 0 undid a load by the engine's own loader
    assert pair.engines[1].checksums() == pair.engines[1].densely_loaded(moved)
    assert pair.sync(moved).seeded_workers == 1
    assert pair.holds(moved)


class DiesInCommit(InProcessHub):
    def send(self, peer, data):
        super().send(peer, data)
        if b"Commit" in data:
            self.fail(RuntimeError("engine core died"))


def test_an_engine_call_that_dies_in_the_commit_leaves_it_uncertain():
    pair = Pair([ToyEngine()])
    with pytest.raises(UncertainCommitError, match="engine core died"):
        pair.sync(checkpoint(), DiesInCommit(), 2.0)
    assert pair.sync(checkpoint()).workers == 1
    assert pair.holds(checkpoint())


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_worker_that_leaves_takes_nothing_from_the_others(ranks):
    """Without the only worker that held a tensor, every later sync was refused."""
    world = World(ranks, ("whole", "partial"))
    world.heal()
    del world.workers[0]
    world.weights = trained(world.weights, "sparse", 1)
    report = world.heal().trainer[0].value
    assert report.seeded_workers == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_worker_that_holds_more_tensors_costs_one_sync(ranks):
    """Every later sync was refused, on all ranks; now all of them start again from a seed."""
    world = World(ranks, ("partial",))
    world.heal()
    world.workers.append(world.new_worker("whole"))
    errors = [outcome.error for outcome in world.sync().trainer]
    assert all(isinstance(error, LayoutChangedError) for error in errors)
    assert [publisher.acked for publisher in world.publishers] == [None] * ranks
    world.heal()


def test_memory_that_was_replaced_under_the_engines_own_loader_is_noticed():
    """The undo wrote to the memory that the engine had left, so that it kept a part of the failed update."""
    pair = Pair([ToyEngine(0, 2), ToyEngine(1, 2)])
    old = checkpoint()
    pair.sync(old)
    pair.engines[0].tensors["flipped"] = pair.engines[0].tensors["flipped"].clone()
    pair.engines[1].fail_after = 0
    moved = trained(old, "everything", 1)
    with pytest.raises(EngineFailedError):
        pair.sync(moved)
    assert pair.holds(old)
    pair.engines[1].fail_after = None
    pair.sync(moved)
    assert pair.holds(moved)


def test_a_rank_does_not_wait_for_workers_that_another_rank_sent_away():
    layout_to_the_first = 4  # after Hello and Table with each
    result = World(2, ("whole",)).sync({layout_to_the_first: Fault("flip")})
    assert isinstance(result.trainer[0].error, DamagedMessageError)
    assert "the trainer aborted the sync: DamagedMessageError" in str(result.trainer[1].error)
    assert [outcome.seconds for outcome in result.trainer] == [0.0, 0.0]


def test_an_uncertain_commit_ends_the_audit_that_was_announced():
    world = World(1, TWO)
    world.heal()
    world.set(audit_every=1)
    first_done = 10  # after Hello, Begin, a frame, Applied and Commit with each
    result = world.sync({first_done: Fault("flip")})
    assert isinstance(result.trainer[0].error, UncertainCommitError)
    assert all("there is no audit" in str(outcome.error) for outcome in result.workers)
    world.heal()


def test_a_mixed_seed_and_delta_is_undone_as_one():
    """Rank 0 lost its place and seeds while rank 1 goes on; then the other worker fails."""
    world = World(2, TWO, level=2)
    world.heal()
    world.publishers[0]._forget()
    world.weights = trained(world.weights, "everything", 1)
    before = [worker.engine.checksums() for worker in world.workers]
    world.workers[1].engine.fail_after = 0
    assert not world.sync().clean
    assert [worker.engine.checksums() for worker in world.workers] == before
    world.workers[1].engine.fail_after = None
    world.heal()
    assert torch.equal(world.workers[0].engine.tensors["norm"], world.workers[1].engine.tensors["norm"])


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_publisher_knows_of_dead_engines_is_bounded(ranks):
    """Every engine start brings a new name; layouts, links and their encoders stayed for the life of the trainer."""
    world = World(ranks, TWO, level=2)
    world.heal()
    for step in range(6):
        for index, kind in enumerate(TWO if step % 2 else ("whole", "partial")):
            world.workers[index] = world.new_worker(kind)
        world.weights = trained(world.weights, "sparse", step)
        world.sync({7: Fault("lose")})  # a sync that fails must not leave anything behind either
        world.settle()
        for publisher in world.publishers:
            assert len(publisher._roster) <= 2 * len(world.workers)
            assert publisher._links.keys() <= publisher._roster.digests()


def test_equal_layouts_are_kept_once_and_the_oldest_absent_worker_is_forgotten():
    roster = Roster()
    kept = roster.add("a", "one", ())
    assert roster.add("b", "one", ()) is kept
    roster.add("c", "two", ())
    roster.met(["a"])
    assert [name for name in "abc" if roster.get(name)] == ["a", "c"]
    roster.met(["c"])
    roster.add("d", "one", ())
    roster.met(["d"])
    assert [name for name in "abcd" if roster.get(name)] == ["c", "d"]
    assert roster.digests() == {"one", "two"}


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_worker_of_another_layout_may_stay_away_and_come_back(ranks, level):
    """The link of its layout was dropped while it was away; the sync that it came back to failed with a KeyError."""
    world = World(ranks, ("first half", "whole"), level)
    world.heal()
    away = world.workers.pop()
    for step in range(8):
        world.weights = trained(world.weights, "sparse", step)
        if step % 3 == 2:
            world.workers.append(away)
        reports = [outcome.value for outcome in world.heal().trainer]
        if step % 3 == 2:
            assert [(r.late_workers, r.seeded_workers) for r in reports] == [(1, 0)] * ranks
            world.workers.pop()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_commit_that_is_lost_on_one_way_is_heard_on_the_other_at_once(rank):
    """The worker waited twice the timeout for the first rank before it listened to the second, which gave up."""
    world = World(2, ("whole",))
    for step in range(2):  # the second is a delta
        world.heal()
        world.weights = trained(world.weights, "sparse", step)
    result = world.sync({world.net.log.index((("down", rank, 0), "Commit")): Fault("lose")})
    assert isinstance(result.trainer[rank].error, UncertainCommitError)
    assert result.trainer[1 - rank].error is None
    assert result.trainer[1 - rank].seconds < 0.2 * TIMEOUT
    assert result.workers[0].seconds <= 1.2 * TIMEOUT
    assert world.heal().trainer[rank].value.seeded_workers == 0
