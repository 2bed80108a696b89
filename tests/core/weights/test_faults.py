"""What happens when something breaks: engines keep a whole version, the trainer raises, nothing hangs."""

from __future__ import annotations

import pytest
import torch
from toy_engine import Pair, ToyEngine, checkpoint

from slipstream.core.weights import (
    AuditMismatchError,
    EngineFailedError,
    InProcessHub,
    SyncError,
    SyncTimeoutError,
    TensorEngine,
)
from slipstream.core.weights.messages import Abort, Hello, Table, decode, encode


class FaultyHub(InProcessHub):
    """Damages or swallows the nth thing the publisher sends."""

    def __init__(self, nth: int, how: str) -> None:
        super().__init__()
        self.nth, self.how, self.count, self.hit = nth, how, 0, False

    def send(self, peer: bytes, data: bytes) -> None:
        self.count += 1
        if self.count - 1 == self.nth:
            self.hit = True
            if self.how == "lose":
                return
            if self.how == "truncate":
                data = data[: len(data) // 2]
            elif self.how == "flip":
                data = data[:-1] + bytes([data[-1] ^ 1])
            elif self.how == "repeat":
                super().send(peer, data)
        super().send(peer, data)


def changed(weights):
    moved = {name: w.clone() for name, w in weights.items()}
    for name in {"q", "o", "norm", "embed", "gate", "flipped"} & moved.keys():
        moved[name].reshape(-1)[::3] += 1
    moved["lm_head"] = moved["embed"]
    return moved


@pytest.mark.parametrize("how", ["lose", "truncate", "flip", "repeat"])
@pytest.mark.parametrize("nth", range(5))
@pytest.mark.parametrize("seeded", [False, True], ids=["seed", "delta"])
def test_a_fault_at_any_message_leaves_one_whole_version_and_the_next_sync_heals(seeded, nth, how):
    pair = Pair([ToyEngine(0, 2), ToyEngine(1, 2)])
    old = checkpoint()
    new = changed(old)
    before = [engine.checksums() for engine in pair.engines]
    if seeded:
        pair.sync(old)
        before = [engine.checksums() for engine in pair.engines]
    hub = FaultyHub(nth, how)
    try:
        pair.sync(new, hub, patience=3.0)
    except SyncError:
        # Either version is right (a lost Commit leaves the old one), a mixture inside one engine is not.
        for engine, was in zip(pair.engines, before, strict=True):
            assert engine.checksums() in (was, engine.densely_loaded(new))
    else:
        assert pair.holds(new)
    assert hub.hit
    pair.sync(new)
    assert pair.holds(new)
    assert pair.errors == [None, None]


def test_an_engine_that_fails_keeps_its_weights_and_the_trainer_raises_its_error():
    pair = Pair([ToyEngine(0, 2), ToyEngine(1, 2)])
    old = checkpoint()
    pair.sync(old)
    acked = pair.publisher.acked
    pair.engines[1].fail_after = 0
    with pytest.raises(EngineFailedError, match="toy engine: loader refuses"):
        pair.sync(changed(old))
    assert pair.holds(old), "rank 0 had applied and must have rolled back too"
    assert pair.publisher.acked == acked
    pair.engines[1].fail_after = None
    report = pair.sync(changed(old))
    assert pair.holds(changed(old))
    assert report.seeded_workers == 2, "an undo cannot know all that the engine's own loader did"


def test_a_loader_that_fails_in_the_seed_restores_what_was_there():
    engine = ToyEngine()
    before = engine.checksums()
    engine.fail_after = 0
    pair = Pair([engine])
    with pytest.raises(EngineFailedError, match="loader refuses"):
        pair.sync(checkpoint())
    assert engine.checksums() == before


def test_another_rank_that_cannot_deliver_stops_this_one():
    pair = Pair([ToyEngine()])
    old = checkpoint()
    pair.sync(old)
    with pytest.raises(SyncError, match="another trainer rank"):
        pair.sync(changed(old), agree=lambda ready: False)
    assert pair.holds(old)
    pair.sync(changed(old))
    assert pair.holds(changed(old))


def test_an_update_that_is_staged_and_never_delivered_is_not_lost():
    pair = Pair([ToyEngine()])
    old = checkpoint()
    pair.sync(old)
    pair.publisher.stage(changed(old).items())
    report = pair.sync(changed(old))
    assert report.changed_elements > 0
    assert pair.holds(changed(old))


def test_a_collective_that_fails_undoes_the_update():
    pair = Pair([ToyEngine()])
    old = checkpoint()
    del old["flipped"]
    pair.sync(old)

    def broken(ready: bool) -> bool:
        raise RuntimeError("gloo: connection closed by peer")

    with pytest.raises(RuntimeError, match="connection closed"):
        pair.sync(changed(old), agree=broken)
    assert pair.holds(old)
    assert pair.sync(changed(old)).seeded_workers == 0
    assert pair.holds(changed(old))


def test_agree_is_called_exactly_once_whatever_happens():
    calls = []
    pair = Pair([ToyEngine()])
    pair.engines[0].fail_after = 0
    with pytest.raises(EngineFailedError):
        pair.sync(checkpoint(), agree=lambda ready: calls.append(ready) or ready)
    assert calls == [False]


def test_a_silent_engine_is_a_timeout_not_a_hang():
    publisher = Pair([], timeout=0.3).publisher
    with pytest.raises(SyncTimeoutError, match=r"0\.3 s"):
        publisher.sync(checkpoint().items(), InProcessHub(), 1)


def test_an_engine_that_lost_its_weights_is_seeded():
    """Sleep level 2, a reload, a restart: the base is gone, a delta would build on nothing."""
    pair = Pair([ToyEngine(0, 2), ToyEngine(1, 2)])
    weights = checkpoint()
    pair.sync(weights)
    pair.engines[0].tensors["qkv"].fill_(3)
    pair.subscribers[0].invalidate("sleep level 2")
    report = pair.sync(changed(weights))
    assert report.seeded_workers == 1
    assert pair.holds(changed(weights))


def test_a_parameter_that_the_engine_replaced_is_noticed():
    pair = Pair([ToyEngine()])
    weights = checkpoint()
    pair.sync(weights)
    pair.engines[0].tensors["norm"] = pair.engines[0].tensors["norm"].clone()
    report = pair.sync(changed(weights))
    assert report.seeded_workers == 1
    assert pair.holds(changed(weights))


@pytest.mark.parametrize("memory", ["of their own", "in common"])
def test_parameters_that_changed_places_are_noticed(memory):
    """All memory is still the engine's, and every fingerprint would agree."""
    base = torch.zeros(2, 8)
    own = [torch.zeros(8), torch.zeros(8)] if memory == "of their own" else [base[0], base[1]]
    engine = TensorEngine({"a": own[0], "b": own[1]})
    engine.rank = 0
    pair = Pair([engine])
    weights = {"a": torch.arange(8.0), "b": -torch.arange(8.0)}
    pair.sync(weights)
    held = engine.tensors
    held["a"], held["b"] = held["b"], held["a"]
    moved = {name: weight + 1 for name, weight in weights.items()}
    assert pair.sync(moved).seeded_workers == 1
    assert all(torch.equal(held[name], moved[name]) for name in moved)
    assert pair.sync(weights).seeded_workers == 0


def test_a_new_trainer_seeds_engines_that_hold_another_run():
    pair = Pair([ToyEngine()])
    pair.sync(checkpoint())
    again = Pair([])
    again.engines, again.subscribers = pair.engines, pair.subscribers
    assert again.sync(changed(checkpoint())).seeded_workers == 1
    assert again.holds(changed(checkpoint()))


def test_a_late_engine_gets_a_seed_while_the_others_get_the_delta():
    pair = Pair([ToyEngine(0, 1)])
    weights = checkpoint()
    pair.sync(weights)
    late = Pair([ToyEngine(0, 1)])
    pair.engines += late.engines
    pair.subscribers += late.subscribers
    report = pair.sync(changed(weights))
    assert (report.workers, report.seeded_workers) == (2, 1)
    assert pair.holds(changed(weights))


def test_a_checkpoint_that_changes_shape_is_refused_and_then_seeded():
    pair = Pair([ToyEngine()])
    weights = checkpoint()
    pair.sync(weights)
    consumed = []

    def other():
        for name, tensor in weights.items():
            yield name, tensor[:1] if name == "k" else tensor
            consumed.append(name)

    with pytest.raises(SyncError, match="tensor 2"):
        pair.publisher.stage(other())
    assert consumed == list(weights), "the trainer's generator is a collective and must be used up"
    assert pair.publisher.acked is None


def test_a_name_the_engine_does_not_know_is_the_engines_own_error():
    pair = Pair([ToyEngine()])
    with pytest.raises(EngineFailedError, match="_load_typo"):
        pair.sync({**checkpoint(), "typo": torch.zeros(3)})


def test_an_audit_finds_an_engine_whose_loader_gives_something_else():
    pair = Pair([ToyEngine()], audit_every=2)
    pair.sync(checkpoint())
    pair.engines[0]._load_norm = lambda weight: pair.engines[0].tensors["norm"].copy_(weight + 1)
    with pytest.raises(AuditMismatchError, match="norm"):
        pair.sync(checkpoint())
    del pair.engines[0]._load_norm
    assert pair.sync(checkpoint()).seeded_workers == 1
    assert pair.holds(checkpoint())


def test_a_refused_worker_goes_back_to_work():
    pair = Pair([ToyEngine()])
    hub = InProcessHub()
    end = hub.connect("rank 0")
    import threading

    errors = []

    def engine():
        try:
            pair.subscribers[0].sync([end], 10)
        except SyncError as error:
            errors.append(str(error))

    thread = threading.Thread(target=engine)
    thread.start()
    pair.publisher.refuse(hub, 1, "ValueError: staging failed")
    thread.join(10)
    assert errors == ["the trainer aborted the sync: ValueError: staging failed"]


def test_a_worker_that_died_before_its_layout_does_not_hold_up_the_one_that_replaces_it():
    pair, hub = Pair([ToyEngine()]), InProcessHub()
    dead = hub.connect("died")
    dead.send(encode(Hello("died", None, None, None), 5))
    assert pair.sync(checkpoint(), hub, patience=20).workers == 1
    assert pair.errors == [None]
    assert pair.holds(checkpoint())
    messages = [decode(dead.receive(0))[0] for _ in range(2)]
    assert [type(message) for message in messages] == [Table, Abort], "one that is only slow is sent away"
