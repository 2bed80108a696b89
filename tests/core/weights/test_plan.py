"""The transfer plan as a whole: exact, once, balanced, and the same for everyone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sharded_worlds import carry_out, piece, stored, worlds
from toy_engine import HIDDEN, ToyEngine, checkpoint

from slipstream.core.weights import TensorSpec, record_layout
from slipstream.core.weights.errors import SyncError
from slipstream.core.weights.plan import Cut, flat_shard, plan, sharded, stacked, window
from slipstream.triton_kernels import Box, scatter_changes


def numbered(**numels):
    return {name: np.arange(numel, dtype=np.uint16) for name, numel in numels.items()}


def pieces(boxes, storage=0):
    return [piece(box, storage) for box in boxes]


@settings(deadline=None, max_examples=250)
@given(worlds())
def test_every_receiver_ends_with_what_a_dense_load_gives_and_gets_each_element_once(world):
    weights, senders, receivers = world
    made = plan(senders, receivers)
    carry_out(made, weights, senders, receivers)
    load = dict.fromkeys(senders, 0)
    for transfer in made.transfers:
        load[transfer.sender] += transfer.numel * len(transfer.receivers)
    assert made.load == load


@settings(deadline=None, max_examples=60)
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(world, random):
    _, senders, receivers = world

    def shuffled(mapping):
        items = list(mapping.items())
        random.shuffle(items)
        return dict(items)

    made = plan(senders, receivers)
    again = plan(
        shuffled({rank: shuffled(held) for rank, held in senders.items()}),
        shuffled({worker: shuffled(held) for worker, held in receivers.items()}),
    )
    assert made == again
    assert made.digest == again.digest


FRESH = """
from slipstream.core.weights.layout import Piece
from slipstream.core.weights.plan import Cut, plan, sharded
senders = {r: {n: sharded((64, 48), [Cut(0, 4, r % 4)]) for n in {"b", "a", "c"}} for r in {7, 3, 0, 2, 1, 5, 4, 6}}
receivers = {w: {n: [Piece(0, (*b,)) for b in sharded((64, 48), [Cut(1, 2, int(w) % 2)])] for n in {"c", "a", "b"}}
             for w in {"1", "0", "3", "2"}}
print(plan(senders, receivers).digest)
"""


def test_a_fresh_process_computes_the_same_plan():
    """String hashes, and with them the order of sets, differ between the processes."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", FRESH],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_parts_of_a_plan():
    senders = {r: {"w": sharded((4, 6), [Cut(0, 2, r)])} for r in range(2)}
    receivers = {f"tp{t}": {"w": pieces(sharded((4, 6), [Cut(1, 2, t)]))} for t in range(2)}
    made = plan(senders, receivers, {"w": 2})
    assert len(made.transfers) == 4
    assert [t.receivers for t in made.of_sender(1)] == [("tp0",), ("tp1",)]
    assert [t.sender for t in made.of_receiver("tp1")] == [0, 1]
    assert made.load == {0: 24, 1: 24}
    last = made.transfers[-1]
    assert (last.region, last.send, last.destinations[0].box) == (
        Box(15, 0, (2, 3), (6, 1), (3, 1)),
        Box(3, 0, (2, 3), (6, 1), (3, 1)),
        Box(0, 6, (6,), (1,), (1,)),
    )


def test_replicas_share_one_encoding():
    senders = {r: {"w": sharded((8, 6), [Cut(0, 4, r)])} for r in range(4)}
    receivers = {f"replica{r} tp{t}": {"w": pieces(sharded((8, 6), [Cut(0, 2, t)]), storage=r)}
                 for r in range(3) for t in range(2)}  # fmt: skip
    made = plan(senders, receivers)
    assert len(made.transfers) == 4
    assert all(len(t.receivers) == 3 for t in made.transfers)
    assert {d.storage for d in made.transfers[0].destinations} == {0, 1, 2}


def test_replicas_that_store_the_elements_differently_share_one_encoding():
    senders = {0: {"w": sharded((4, 6))}}
    receivers = {
        "plain": {"w": pieces(sharded((4, 6)))},
        "transposed": {"w": [piece(stored((4, 6), [slice(None)] * 2, order=[1, 0]))]},
    }
    (transfer,) = plan(senders, receivers).transfers
    assert transfer.receivers == ("plain", "transposed")
    carry_out(plan(senders, receivers), numbered(w=24), senders, receivers)


def test_replicas_of_other_widths_share_what_they_have_in_common_with_a_sender():
    """Engine A does not shard, engine B shards in two: each of two row senders still encodes once."""
    senders = {r: {"w": sharded((4, 6), [Cut(0, 2, r)])} for r in range(2)}
    receivers = {"a": {"w": pieces(sharded((4, 6)))}} | {
        f"b{t}": {"w": pieces(sharded((4, 6), [Cut(0, 2, t)]))} for t in range(2)
    }
    made = plan(senders, receivers)
    assert [t.receivers for t in made.transfers] == [("a", "b0"), ("a", "b1")]
    carry_out(made, numbered(w=24), senders, receivers)


def test_tied_destinations_travel_once():
    senders = {0: {"embed": sharded((10, 4))}}
    receivers = {"w": {"embed": [*pieces(sharded((10, 4)), 0), *pieces(sharded((10, 4)), 5)]}}
    (transfer,) = plan(senders, receivers).transfers
    assert transfer.receivers == ("w",)
    assert [d.storage for d in transfer.destinations] == [0, 5]


def test_partly_tied_destinations_travel_once_too():
    senders = {0: {"w": sharded((10, 4))}}
    receivers = {"w": {"w": [piece(Box(0, 0, (24,), (1,), (1,)), 0), piece(Box(16, 0, (24,), (1,), (1,)), 1)]}}
    made = plan(senders, receivers)
    carry_out(made, numbered(w=40), senders, receivers)
    assert sum(t.numel for t in made.transfers) == 40


@pytest.mark.parametrize("width", [1, 2])
def test_replicated_senders_share_the_load(width):
    random = np.random.default_rng(0)
    shapes = {f"t{n}": (int(random.integers(1, 60)), int(random.integers(1, 60))) for n in range(200)}
    senders = {r: {name: sharded(shape) for name, shape in shapes.items()} for r in range(8)}
    receivers = {f"w{t}": {name: pieces(sharded(shape, [Cut(0, 4, t)])) for name, shape in shapes.items()}
                 for t in range(4)}  # fmt: skip
    made = plan(senders, receivers, dict.fromkeys(shapes, width))
    largest = max(t.numel * len(t.receivers) * width for t in made.transfers)
    assert max(made.load.values()) <= 1.05 * np.mean(list(made.load.values())) + largest
    assert sum(made.load.values()) == width * sum(a * b for a, b in shapes.values())


def test_replicas_relieve_ranks_that_alone_hold_something():
    """HSDP over 2 x 2 ranks; rank 0 alone holds one tensor, so it sends none of what the others also have."""
    senders = {r: {"w": sharded((8, 8), [Cut(0, 2, r % 2)])} for r in range(4)}
    senders[0]["alone"] = sharded((100,))
    made = plan(senders, {"w": {"w": pieces(sharded((8, 8))), "alone": pieces(sharded((100,)), 1)}})
    assert made.load[0] == 100
    assert sorted(made.load.values()) == [0, 32, 32, 100]


def test_partly_replicated_senders():
    """Rank 1 holds only the second half of what rank 0 holds: it sends that half."""
    senders = {0: {"w": sharded((8, 4))}, 1: {"w": flat_shard({"w": 32}, 16, 32)["w"]}}
    receivers = {"w": {"w": pieces(sharded((8, 4)))}}
    made = plan(senders, receivers)
    assert made.load == {0: 16, 1: 16}
    carry_out(made, numbered(w=32), senders, receivers)


def test_a_missing_sender_is_named_with_tensor_receiver_and_elements():
    senders = {r: {"w": sharded((8, 4), [Cut(0, 4, r)])} for r in (0, 1, 3)}
    receivers = {"worker 5": {"w": pieces(sharded((8, 4), [Cut(1, 2, 1)]))}}
    with pytest.raises(SyncError, match=r"4 elements of w that engine worker worker 5 needs.* 18 and 23"):
        plan(senders, receivers)


def test_a_tensor_nobody_holds_is_an_error_and_one_nobody_needs_is_not():
    with pytest.raises(SyncError, match="6 elements of lost"):
        plan({0: {}}, {"w": {"lost": pieces(sharded((6,)))}})
    assert plan({0: {"extra": sharded((6,))}}, {"w": {"extra": []}}).transfers == ()
    assert plan({}, {}).transfers == ()


def test_overlapping_shards_do_not_hide_a_gap():
    """As many elements twice as are missing: a mere count would see nothing."""
    senders = {0: {"w": flat_shard({"w": 30}, 0, 15)["w"]}, 1: {"w": flat_shard({"w": 30}, 5, 20)["w"]}}
    with pytest.raises(SyncError, match=r"10 elements of w .* 20 and 29"):
        plan(senders, {"w": {"w": pieces(sharded((30,)))}})


def toy_trainer(kind):
    """rank -> tensor -> boxes for the toy checkpoint."""
    shapes = {name: tuple(t.shape) for name, t in checkpoint().items()}
    numels = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    total = sum(numels.values())
    if kind == "fsdp2":
        return {r: {n: sharded(s, [Cut(0, 5, r)]) for n, s in shapes.items()} for r in range(5)}
    if kind == "fsdp1":
        return {r: flat_shard(numels, r * total // 3, (r + 1) * total // 3) for r in range(3)}
    if kind == "hsdp":
        return {r: {n: sharded(s, [Cut(0, 2, r % 2)]) for n, s in shapes.items()} for r in range(4)}
    if kind == "megatron tp, distributed optimizer":
        ranks = {}
        for rank in range(4):
            column, row, half = Cut(0, 2, rank % 2), Cut(1, 2, rank % 2), rank // 2
            held = {n: sharded(s, [row] if n == "o" else [] if n == "norm" else [column]) for n, s in shapes.items()}
            held |= stacked({n: shapes[n] for n in ("gate", "up")}, [column])
            for name, boxes in held.items():
                end = max((box.dst_offset + box.dst_span for box in boxes), default=0)
                held[name] = window(boxes, half * end // 2, (half + 1) * end // 2)
            gate_up = 32 * HIDDEN  # elements of the rank's fused parameter
            for name, boxes in stacked({n: shapes[n] for n in ("gate", "up")}, [column]).items():
                held[name] = window(boxes, half * gate_up // 2, (half + 1) * gate_up // 2)
            ranks[rank] = held
        return ranks
    return {r: {n: sharded(s) for i, (n, s) in enumerate(shapes.items()) if i % 3 == r} for r in range(3)}


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("kind", ["fsdp2", "fsdp1", "hsdp", "megatron tp, distributed optimizer", "pipeline"])
def test_recorded_layouts_are_served_from_every_kind_of_trainer(kind, size):
    """A dense sync through the plan's boxes and the kernels leaves in the engine what its own loader does."""
    weights = checkpoint()
    specs = [TensorSpec.of(name, tensor) for name, tensor in weights.items()]
    engines = {f"rank {r}": ToyEngine(r, size, torch.float32) for r in range(size)}
    layouts = {name: record_layout(engine.load_weights, specs) for name, engine in engines.items()}
    receivers = {name: {t.name: t.pieces for t in layout.tensors} for name, layout in layouts.items()}
    senders = toy_trainer(kind)
    bits = {name: tensor.reshape(-1).view(torch.int32) for name, tensor in weights.items()}
    shards = {}
    for rank, held in senders.items():
        for name, boxes in held.items():
            end = max((box.dst_offset + box.dst_span for box in boxes), default=0)
            shards[rank, name] = torch.zeros(end, dtype=torch.int32)
            for box in boxes:
                scatter_changes(shards[rank, name], box, torch.arange(bits[name].numel()), bits[name])
    made = plan(senders, receivers, dict.fromkeys(weights, 4))
    for transfer in made.transfers:
        shard = shards[transfer.sender, transfer.tensor]
        wire = torch.zeros(transfer.numel, dtype=torch.int32)
        scatter_changes(wire, transfer.send, torch.arange(shard.numel()), shard)
        for end in transfer.destinations:
            scatter_changes(layouts[end.receiver].storages[end.storage], end.box, torch.arange(transfer.numel), wire)
    for rank, engine in enumerate(engines.values()):
        fresh = ToyEngine(rank, size, torch.float32)
        fresh.load_weights(weights.items())
        for name, tensor in engine.tensors.items():
            if name == "embed":
                rows = min(max(50 - rank * len(tensor), 0), len(tensor))
                assert torch.equal(tensor[:rows], fresh.tensors[name][:rows])
            elif name != "flipped":
                assert torch.equal(tensor, fresh.tensors[name]), name
    if len(senders) > 1:
        assert max(made.load.values()) < sum(made.load.values()), "one rank must not be the funnel"


def test_a_large_model_is_planned_in_seconds():
    """18,432 expert tensors, tensor-parallel on 8 workers: about 150,000 transfers."""
    names = [(layer, expert, kind) for layer in range(48) for expert in range(128) for kind in ("gate", "up", "down")]
    shapes = {"gate": (768, 2048), "up": (768, 2048), "down": (2048, 768)}
    senders = {r: {str(n): sharded(shapes[n[2]]) for n in names if n[1] // 16 == r} for r in range(8)}
    receivers = {f"w{t}": {str(n): pieces(sharded(shapes[n[2]], [Cut(1 if n[2] == "down" else 0, 8, t)]), n[0])
                           for n in names} for t in range(8)}  # fmt: skip
    start = time.perf_counter()
    made = plan(senders, receivers)
    assert time.perf_counter() - start < 20
    assert len(made.transfers) == 8 * len(names)
    assert len(set(made.load.values())) == 1
