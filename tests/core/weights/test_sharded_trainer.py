"""Trainer ranks publish their own shards; engines of another parallelism take them from all ranks as one update."""

from __future__ import annotations

import pytest
import torch
from sharded_trainer import ShardedTrainer
from toy_engine import ToyEngine, checkpoint

from slipstream.core.weights import EngineFailedError, InProcessHub, SyncError, SyncReport
from slipstream.core.weights.plan import Cut, flat_shard, sharded

SHAPES = {name: tuple(tensor.shape) for name, tensor in checkpoint().items()}


def rows(ranks):
    return {r: {n: sharded(s, [Cut(0, ranks, r)]) for n, s in SHAPES.items()} for r in range(ranks)}


def columns(ranks):
    return {r: {n: sharded(s, [Cut(len(s) - 1, ranks, r)]) for n, s in SHAPES.items()} for r in range(ranks)}


def flat(ranks):
    """One flat parameter of all tensors, cut without regard to rows: FSDP1 and ZeRO."""
    numels = {name: torch.Size(shape).numel() for name, shape in SHAPES.items()}
    total = sum(numels.values())
    cuts = [total * r // ranks for r in range(ranks + 1)]
    result = {}
    for rank in range(ranks):
        boxes = flat_shard(numels, cuts[rank], cuts[rank + 1])
        # Each tensor's part is published as a flat tensor of its own, so it starts at 0.
        result[rank] = {
            name: [box._replace(dst_offset=box.dst_offset - min(b.dst_offset for b in part)) for box in part]
            for name, part in boxes.items()
            if part
        }
    return result


def stages(ranks):
    """Pipeline stages: whole tensors, each on one rank."""
    names = list(SHAPES)
    return {r: {n: sharded(SHAPES[n]) for n in names[r::ranks]} for r in range(ranks)}


def replicated(ranks):
    return {r: {n: sharded(s) for n, s in SHAPES.items()} for r in range(ranks)}


TRAINERS = {
    "rows": rows(2),
    "uneven rows": rows(3),
    "columns": columns(2),
    "flat ranges": flat(3),
    "pipeline stages": stages(2),
    "replicas": replicated(2),
}
ENGINES = {"one worker": [(0, 1)], "two tensor-parallel workers": [(0, 2), (1, 2)]}


def moved(weights, step):
    generator = torch.Generator().manual_seed(step)
    result = {n: w + 1e-2 * torch.randn(w.shape, generator=generator).to(w.dtype) for n, w in weights.items()}
    result["lm_head"] = result["embed"]
    return result


def start(trainer="rows", engines="two tensor-parallel workers", **settings):
    workers = [ToyEngine(rank, size) for rank, size in ENGINES[engines]]
    return ShardedTrainer(checkpoint(), TRAINERS[trainer], workers, **settings)


@pytest.mark.parametrize("engines", ENGINES)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_engine_holds_what_a_dense_load_gives(trainer, engines):
    world = start(trainer, engines, audit_every=2)
    weights = checkpoint()
    for step in range(4):
        weights = moved(weights, step)
        reports = world.sync(weights)
        assert world.errors == [None] * len(world.engines)
        assert all(isinstance(report, SyncReport) for report in reports), reports
        assert world.holds(weights), f"sync {step}"
        assert [r.seeded_workers for r in reports] == [len(world.engines) if step == 0 else 0] * len(reports)
        assert [r.audited_tensors for r in reports] == [7 * len(world.engines) if step % 2 else 0] * len(reports)


def test_nothing_travels_twice():
    """Two row shards to one worker: together the bytes of one whole sender, not twice as many."""
    whole = start("replicas", "one worker").sync(checkpoint())
    halves = start("rows", "one worker").sync(checkpoint())
    assert sum(r.payload_bytes for r in halves) < sum(r.payload_bytes for r in whole) + 1500
    assert all(r.payload_bytes > 0 for r in halves)


def test_a_rank_that_lost_its_place_seeds_its_part_and_the_others_go_on_with_deltas():
    world = start()
    weights = checkpoint()
    world.sync(weights)
    world.publishers[1]._forget()
    weights = moved(weights, 1)
    reports = world.sync(weights)
    assert [r.seeded_workers for r in reports] == [0, 2]
    assert world.holds(weights)


def test_a_failing_engine_stops_every_rank_and_keeps_its_weights():
    world = start()
    weights = checkpoint()
    world.sync(weights)
    world.engines[1].fail_after = 0
    outcomes = world.sync(moved(weights, 1))
    assert any(isinstance(error, EngineFailedError) and "loader refuses" in str(error) for error in outcomes)
    assert all(isinstance(error, SyncError) for error in outcomes)
    assert world.holds(weights)
    world.engines[1].fail_after = None
    world.sync(moved(weights, 1))
    assert world.holds(moved(weights, 1))


class LosesCommits(InProcessHub):
    def send(self, peer: bytes, data: bytes) -> None:
        if b"Commit" not in data:
            super().send(peer, data)


def test_a_commit_that_one_rank_sent_stands_though_the_other_was_lost():
    """The ranks agreed, so both count the update as done; the engine must not undo it for a lost message."""
    world = start(patience=2.0)
    weights = checkpoint()
    world.sync(weights)
    world.hub_of = lambda rank: LosesCommits() if rank == 1 else InProcessHub()
    weights = moved(weights, 1)
    outcomes = world.sync(weights)
    assert isinstance(outcomes[0], SyncReport)
    assert isinstance(outcomes[1], SyncError)
    assert world.holds(weights)
    world.hub_of = lambda rank: InProcessHub()
    weights = moved(weights, 2)
    reports = world.sync(weights)
    assert [r.seeded_workers for r in reports] == [0, 0]
    assert world.holds(weights)


def test_shards_that_are_not_as_announced_are_refused():
    world = start()
    broken = [(name, local[:-1] if name == "k" else local) for name, local in world.shard(0, checkpoint())]
    with pytest.raises(SyncError, match="expected 96 elements"):
        world.publishers[0].stage(broken)
    missing = world.shard(0, checkpoint())[:-1]
    with pytest.raises(SyncError, match="10 tensors came, 11 were expected"):
        world.publishers[0].stage(missing)
