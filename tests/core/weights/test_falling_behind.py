"""Engines that are behind by different amounts at the same time are brought up to date at once, whatever was missed."""

from __future__ import annotations

import os

import fsspec
import torch
from fault_world import STEPS, World, trained
from faulty_net import KINDS, Fault
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy_engine import ToyEngine, checkpoint

from slipstream.core.weights.chain import ChainReader, ChainWriter

FUZZ = int(os.environ.get("SLIPSTREAM_FUZZ", "0"))
often = settings(
    derandomize=not FUZZ,
    database=None,
    max_examples=FUZZ or 30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
there = st.sets(st.integers(0, 3), min_size=1)
faults = st.dictionaries(st.integers(0, 40), st.builds(Fault, st.sampled_from(KINDS)), min_size=1, max_size=2)
EVERYTHING_SINCE, NOTHING = 100.0, 0.0


@often
@given(
    ranks=st.integers(1, 2),
    kinds=st.sampled_from([("whole",) * 4, ("first half", "second half") * 2, ("whole", "partial", "whole", "whole")]),
    level=st.integers(0, 2),
    share=st.sampled_from([EVERYTHING_SINCE, 0.3, 0.05, NOTHING]),
    syncs=st.lists(st.tuples(there, st.sampled_from(STEPS), st.none() | faults), min_size=1, max_size=6),
)
def test_workers_that_missed_different_syncs(ranks, kinds, level, share, syncs):
    """Each sync has some of four workers, and perhaps faults; the next one without faults brings those up to date that
    take part. Nobody is sent a second seed without need: when faults happened, changes were forgotten to save memory,
    or more workers were away than took part (the roster forgets those)."""
    world = World(ranks, kinds, level)
    world.set(history_share=share)
    world.heal()
    workers = world.workers
    missed = [0] * len(workers)
    lost = few = False
    for number, (present, how, hit) in enumerate([*syncs, ({0, 1, 2, 3}, "sparse", None)]):
        slots = sorted(present)
        world.workers = [workers[slot] for slot in slots]
        world.net.forget()
        world.weights = trained(world.weights, how, number)
        if hit is not None:
            world.sync(hit)
            workers[:] = [dict(zip(slots, world.workers, strict=True)).get(i, old) for i, old in enumerate(workers)]
            lost = True
        few |= 2 * len(present) < len(workers)
        reports = [outcome.value for outcome in world.heal().trainer]
        if not lost:
            behind = sum(missed[slot] > 0 for slot in slots)
            found = {(report.late_workers, report.seeded_workers) for report in reports}
            assert len(found) == 1, "all ranks find the same workers late"
            late, seeded = found.pop()
            assert late + seeded == behind, "those that missed something are behind, and no one else"
            if share == NOTHING:
                assert late == 0
            elif share == EVERYTHING_SINCE and not few:
                assert seeded == 0
        missed = [0 if slot in present else missed[slot] + 1 for slot in range(len(workers))]


@often
@given(
    level=st.integers(0, 2),
    anchor_every=st.integers(1, 4),
    keep_anchors=st.integers(1, 2),
    steps=st.lists(st.tuples(st.sets(st.integers(0, 2)), st.sampled_from(STEPS)), min_size=1, max_size=9),
    restart=st.integers(0, 9),
)
def test_readers_that_are_behind_a_chain_that_is_pruned(level, anchor_every, keep_anchors, steps, restart):
    """Three readers follow as they like, while the writer deletes what has left the chain and once starts anew."""
    url, held = "memory://falling-behind", torch.bfloat16  # engines keep the router in fp32, the chain rounds it

    def writer() -> ChainWriter:
        return ChainWriter(url, dtype=held, level=level, anchor_every=anchor_every, keep_anchors=keep_anchors)

    try:
        weights, chain = checkpoint(), writer()
        engines = [ToyEngine(0, 1) for _ in range(3)]
        readers = [ChainReader(url, engine) for engine in engines]
        for number, (reading, how) in enumerate([*steps, ({0, 1, 2}, "sparse")]):
            if number == restart:
                chain = writer()
            weights = trained(weights, how, number)
            version = chain.publish(weights.items()).version
            for reader in reading:
                assert readers[reader].update() == version
                rounded = {name: tensor.to(held) for name, tensor in weights.items()}
                assert engines[reader].checksums() == engines[reader].densely_loaded(rounded)
    finally:
        fsspec.filesystem("memory").rm("/falling-behind", recursive=True)
