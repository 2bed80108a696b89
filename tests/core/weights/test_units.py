"""Units: each worker is addressed in what it holds, all of it and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toy_engine import Pair, ToyEngine, checkpoint

from slipstream.core.weights import TensorSpec, record_layout
from slipstream.core.weights.held import HeldUnit
from slipstream.core.weights.layout import Piece, TensorLayout
from slipstream.core.weights.sending import SendingLink
from slipstream.core.weights.snapshot import Snapshot
from slipstream.core.weights.trainer_shards import whole_tensors
from slipstream.core.weights.units import SMALL, Link, link_units
from slipstream.triton_kernels import Box


def recorded(engine, weights):
    specs = tuple(TensorSpec.of(name, tensor) for name, tensor in weights.items())
    return specs, record_layout(engine.load_weights, specs)


def whole_link(specs, layouts) -> Link:
    return link_units(specs, layouts, whole_tensors(specs, run=1).senders, rank=0)


def snapshot_of(weights, dtype):
    snapshot = Snapshot(keep_on_device=False)
    for index, (name, tensor) in enumerate(weights.items()):
        snapshot.store(index, tensor if name in ("router", "flipped") else tensor.to(dtype))
    return snapshot


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 2), (1, 2)])
def test_both_ends_see_the_same_elements_in_the_same_order(rank, size):
    weights = checkpoint()
    engine = ToyEngine(rank, size)
    specs, layout = recorded(engine, weights)
    engine.load_weights(weights.items())
    link = whole_link(specs, layout.tensors)
    sender = SendingLink(link, snapshot_of(weights, torch.bfloat16).bits, level=0)
    held = 0
    for index, (unit, fingerprint) in enumerate(zip(link.units, sender.expected(whole=True), strict=True)):
        if unit.by_loader:
            assert specs[unit.tensors[0]].name == "flipped"
            continue
        at_worker = HeldUnit(unit, layout.storages)
        assert np.array_equal(at_worker.all(), sender.dense(index))
        some = np.arange(0, unit.numel, 7)
        assert np.array_equal(at_worker.at(some), sender.dense(index)[some])
        assert at_worker.fingerprint() == fingerprint
        held += unit.numel
    padding = 14 * 24 if rank == size - 1 else 0
    flipped = 6 * 24
    assert held == sum(t.numel() for t in engine.tensors.values()) - padding - flipped


def test_small_parts_share_units_by_dtype_and_large_ones_do_not():
    sizes = {"a": 100, "big": SMALL, "b": SMALL - 200, "c": 99, "d": 500, "last": 3}
    specs = [TensorSpec(name, (size,), "float32") for name, size in sizes.items()]
    layouts = [
        TensorLayout(
            s.name, "float32" if s.name == "d" else "bfloat16", "mapped", (Piece.of(i, Box.identity(s.numel)),)
        )
        for i, s in enumerate(specs)
    ]
    units = whole_link(specs, layouts).units
    assert [[specs[t].name for t in unit.tensors] for unit in units] == [["a", "b", "c", "last"], ["big"], ["d"]]
    assert [unit.numel for unit in units] == [100 + SMALL - 200 + 99 + 3, SMALL, 500]
    assert [unit.dtype for unit in units] == ["bfloat16", "bfloat16", "float32"]


def test_a_full_unit_is_closed():
    specs = [TensorSpec(str(i), (SMALL // 2,), "bfloat16") for i in range(5)]
    layouts = [TensorLayout(s.name, "bfloat16", "mapped", (Piece.of(0, Box.identity(s.numel)),)) for s in specs]
    assert [unit.tensors for unit in whole_link(specs, layouts).units] == [(0, 1), (2, 3), (4,)]


def test_a_part_that_a_worker_holds_twice_travels_once():
    """A column shard stored twice, once with its rows apart: the same elements, in boxes of different ranks."""
    spec = TensorSpec("tied", (6, 8), "float32")
    tight = Box(4, 0, (6, 4), (8, 1), (4, 1))
    padded = Box(4, 100, (6, 4), (8, 1), (16, 1))
    layout = TensorLayout("tied", "float32", "mapped", (Piece.of(0, tight), Piece.of(1, padded)))
    link = whole_link([spec], [layout])
    (unit,) = link.units
    assert (unit.numel, len(unit.pieces), link.sources[0].copies) == (24, 2, 2)
    storages = [torch.arange(24, dtype=torch.int32), torch.zeros(300, dtype=torch.int32)]
    storages[1].as_strided((6, 4), (16, 1), 100).copy_(storages[0].view(6, 4))
    snapshot = Snapshot(keep_on_device=False)
    whole = torch.zeros(6, 8)
    whole.view(torch.int32)[:, 4:] = storages[0].view(6, 4)
    snapshot.store(0, whole)
    assert HeldUnit(unit, storages).fingerprint() == SendingLink(link, snapshot.bits, 0).expected(whole=True)[0]


def test_a_worker_is_sent_its_own_shard_only():
    weights = {name: tensor for name, tensor in checkpoint().items() if name not in ("norm", "router", "flipped")}
    alone = Pair([ToyEngine(0, 1)]).sync(weights).payload_bytes
    shared = Pair([ToyEngine(0, 2), ToyEngine(1, 2)]).sync(weights).payload_bytes
    assert shared < 1.05 * alone + 400
