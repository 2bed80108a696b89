"""Shard maps against what the trainers' own code does with a tensor."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sharded_worlds import pairs
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

from slipstream.core.weights.plan import Cut, block, flat_shard, fused_qkv, sharded, stacked, subtensor, window


def held(boxes, weights, numel):
    """The local shard that boxes describe: int64[numel], -1 where nothing of the tensor is."""
    shard = torch.full((numel,), -1)
    flat = weights.reshape(-1)
    for box in boxes:
        for index, local in pairs(box):
            assert shard[local] == -1
            shard[local] = flat[index]
    return shard


def numbers(*shape):
    return torch.arange(torch.Size(shape).numel()).view(shape)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8])
def test_fsdp2_even_and_uneven_shards_are_torch_chunks(dim, ranks):
    """7 rows over 8 ranks leave the last one with nothing; over 4, with one."""
    weights = numbers(7, 10)
    chunks = list(weights.chunk(ranks, dim))
    chunks += [weights.narrow(dim, 0, 0)] * (ranks - len(chunks))
    for rank, chunk in enumerate(chunks):
        boxes = sharded(weights.shape, [Cut(dim, ranks, rank)])
        assert torch.equal(held(boxes, weights, chunk.numel()), chunk.reshape(-1))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_dtensors_of_any_mesh_are_what_torch_computes(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    mesh = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    dims = [data.draw(st.one_of(st.none(), st.integers(0, len(shape) - 1))) for _ in mesh]
    placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
    coordinate = [data.draw(st.integers(0, size - 1)) for size in mesh]
    sizes, start = _compute_local_shape_and_global_offset(shape, mesh, lambda dim: coordinate[dim], placements)
    cuts = [Cut(d, n, c) for d, n, c in zip(dims, mesh, coordinate, strict=True) if d is not None]
    expected = [] if 0 in sizes else block(shape, start, sizes)
    assert sharded(shape, cuts) == expected


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_fsdp1_flat_parameters_cut_rows(ranks):
    tensors = {"a": numbers(5, 7), "b": numbers(3) + 100, "c": numbers(4, 4) + 200}
    flat = torch.cat([t.reshape(-1) for t in tensors.values()])
    length = -(-flat.numel() // ranks)
    for rank in range(ranks):
        own = flat_shard({n: t.numel() for n, t in tensors.items()}, rank * length, (rank + 1) * length)
        shard = torch.full((length,), -1)
        for name, boxes in own.items():
            part = held(boxes, tensors[name], length)
            shard = torch.where(part >= 0, part, shard)
        expected = flat[rank * length : (rank + 1) * length]
        assert torch.equal(shard[: len(expected)], expected)


def test_zero3_partitions_one_parameter():
    (box,) = flat_shard({"w": 35}, 24, 36)["w"]
    assert box == (24, 0, (11,), (1,), (1,))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("heads", "groups", "ranks"), [(8, 8, 2), (8, 4, 2), (8, 2, 1), (12, 4, 4)])
def test_megatron_fused_qkv_interleaves_groups(heads, groups, ranks, bias):
    """Built the other way round, as Megatron-Bridge's QKV merge does it: per group queries, key, value."""
    head_dim, hidden = 4, 1 if bias else 6
    q = numbers(heads * head_dim, hidden)
    k, v = numbers(groups * head_dim, hidden) + 1000, numbers(groups * head_dim, hidden) + 2000
    split = [t.view(groups, -1, head_dim, hidden) for t in (q, k, v)]
    fused = torch.cat(split, 1).reshape(-1, hidden)
    for rank, local in enumerate(fused.chunk(ranks)):
        boxes = fused_qkv(hidden, heads, groups, head_dim, Cut(0, ranks, rank))
        shard = torch.full((local.numel(),), -1)
        for name, weights in (("q", q), ("k", k), ("v", v)):
            part = held(boxes[name], weights, local.numel())
            shard = torch.where(part >= 0, part, shard)
        assert torch.equal(shard, local.reshape(-1))


def test_fused_qkv_refuses_what_does_not_divide():
    with pytest.raises(ValueError, match="whole groups"):
        fused_qkv(8, 8, 2, 4, Cut(0, 4, 0))


@pytest.mark.parametrize("rank", [0, 1])
def test_gate_and_up_stand_one_behind_the_other(rank):
    gate, up = numbers(8, 5), numbers(8, 5) + 100
    local = torch.cat([gate.chunk(2)[rank], up.chunk(2)[rank]]).reshape(-1)
    boxes = stacked({"gate": gate.shape, "up": up.shape}, [Cut(0, 2, rank)])
    parts = held(boxes["gate"], gate, 40), held(boxes["up"], up, 40)
    assert torch.equal(torch.maximum(*parts), local)


def test_experts_of_one_stacked_parameter():
    """Rank 1 of 2 holds experts 2 and 3 of 4, whether the checkpoint has them apart or as one tensor."""
    apart = stacked({f"experts.{e}": (3, 5) for e in (2, 3)})
    assert [box.dst_offset for boxes in apart.values() for box in boxes] == [0, 15]
    assert sharded((4, 3, 5), [Cut(0, 2, 1)]) == [(30, 0, (30,), (1,), (1,))]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_window_of_a_shard_is_a_flat_range_of_it(data):
    """Megatron's distributed optimizer: flat ranges of a tensor-parallel shard."""
    weights = numbers(6, 8)
    boxes = sharded(weights.shape, [Cut(1, 2, 1)])
    numel = 24
    start = data.draw(st.integers(0, numel))
    stop = data.draw(st.integers(start, numel))
    expected = weights[:, 4:].reshape(-1)[start:stop]
    assert torch.equal(held(window(boxes, start, stop), weights, stop - start), expected)


def test_a_whole_tensor_is_no_cut_and_a_scalar_is_one_element():
    assert sharded((3, 4)) == [(0, 0, (12,), (1,), (1,))]
    assert sharded(()) == [(0, 0, (1,), (1,), (1,))]
    assert sharded((0, 4)) == []


@pytest.mark.parametrize("cut", [Cut(2, 2, 0), Cut(0, 2, 2), Cut(-1, 2, 0)])
def test_a_cut_the_tensor_does_not_have_is_refused(cut):
    with pytest.raises(ValueError, match="cannot take"):
        sharded((4, 4), [cut])


def test_a_block_outside_the_tensor_is_refused():
    with pytest.raises(ValueError, match="inside"):
        block((4, 4), (2, 0), (3, 4))
    with pytest.raises(ValueError, match="inside"):
        block((4, 4), (0,), (4,))


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_tensor_inside_a_sharded_stack_is_what_slicing_gives(dim, ranks):
    """Up projection of expert 2 in a [5, 6, 4] stack of gate and up, the stack cut over ranks along any dimension."""
    stack = numbers(5, 6, 4)
    inner = stack[2, 3:]
    for rank, chunk in enumerate(stack.chunk(ranks, dim)):
        boxes = subtensor(sharded(stack.shape, [Cut(dim, ranks, rank)]), 2 * 24 + 12, 3 * 24)
        there = torch.isin(chunk.reshape(-1), inner)
        expected = torch.where(there, chunk.reshape(-1), -1)
        assert torch.equal(held(boxes, inner, chunk.numel()), expected)
