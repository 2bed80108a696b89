"""The common elements of two boxes: exact, disjoint, few, and cheap."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sharded_worlds import pairs, reshaped, shapes, slices, stored

from slipstream.core.weights.plan import Cut, intersect, sharded
from slipstream.core.weights.plan.atoms import atoms
from slipstream.core.weights.plan.difference import difference
from slipstream.triton_kernels import Box, fingerprint, normalise, scatter_changes
from slipstream.triton_kernels.box import MAX_RANK


@st.composite
def two_boxes(draw):
    shape = draw(shapes())
    return draw(slices(shape)), draw(slices(shape))


@st.composite
def nested_boxes(draw):
    """Strides that come from no shape: any that nest."""
    dims, inner = [], 1
    for _ in range(draw(st.integers(0, 4))):
        size, stride = draw(st.integers(1, 6)), inner + draw(st.integers(0, 5))
        dims.append((size, stride))
        inner += (size - 1) * stride + draw(st.integers(0, 1))
    sizes, strides = tuple(size for size, _ in dims), tuple(stride for _, stride in dims)
    dst = [sizes[:j] for j in range(len(sizes))]
    return Box(draw(st.integers(0, 40)), 3, sizes, strides, tuple(torch.Size(d).numel() for d in dst))


@settings(deadline=None, max_examples=300)
@given(st.one_of(two_boxes(), st.tuples(nested_boxes(), nested_boxes())))
def test_overlaps_hold_exactly_the_common_elements_in_all_three_coordinates(boxes):
    a, b = boxes
    in_a, in_b = dict(pairs(a)), dict(pairs(b))
    found = {}
    for overlap in intersect(a, b):
        to_wire = dict(pairs(overlap.region))
        assert list(to_wire.values()) == list(range(overlap.numel))
        assert list(to_wire) == sorted(to_wire)
        from_sender = {wire: local for local, wire in pairs(overlap.send)}
        to_storage = dict(pairs(overlap.receive))
        assert dict(pairs(overlap.sender_to_receiver)) == {from_sender[w]: to_storage[w] for w in to_storage}
        for index, wire in to_wire.items():
            assert index not in found
            found[index] = (from_sender[wire], to_storage[wire])
        assert len(overlap.sizes) <= MAX_RANK
        for box in (overlap.region, overlap.send, overlap.receive, overlap.sender_to_receiver):
            assert normalise(box).numel == overlap.numel
    assert found == {index: (in_a[index], in_b[index]) for index in in_a.keys() & in_b.keys()}


@settings(deadline=None, max_examples=200)
@given(st.one_of(two_boxes(), st.tuples(nested_boxes(), nested_boxes())))
def test_the_difference_holds_exactly_the_rest(boxes):
    a, b = map(normalise, boxes)
    left = [pair for box in difference(a, b) for pair in pairs(box)]
    assert len(dict(left)) == len(left)
    inside = dict(pairs(b))
    assert dict(left) == {index: local for index, local in pairs(a) if index not in inside}


@settings(deadline=None, max_examples=100)
@given(st.lists(nested_boxes(), max_size=5))
def test_atoms_are_disjoint_and_know_their_boxes(boxes):
    boxes = list(map(normalise, boxes))
    covered = {}
    for atom in atoms(boxes):
        for index, _ in pairs(atom.region):
            assert index not in covered
            covered[index] = atom.boxes
    held = [dict(pairs(box)) for box in boxes]
    assert covered == {index: tuple(n for n, box in enumerate(held) if index in box) for index in set().union(*held)}


def box_of(*ranges):
    """WeightBridge's notation: (first, end, width) for each dim."""
    return stored([width for *_, width in ranges], [slice(first, end) for first, end, _ in ranges])


# WeightBridge's alignment cases: name, sender, receiver, overlaps needed. Its own answers are one box or a refusal.
ALIGNED = {
    "same dims": ([(0, 4, 4), (0, 6, 6)], [(2, 3, 4), (1, 5, 6)]),
    "sender flat, receiver split": ([(0, 24, 24)], [(0, 4, 4), (0, 6, 6)]),
    "receiver flat, sender split": ([(0, 4, 4), (0, 6, 6)], [(0, 24, 24)]),
    "flat range of whole rows": ([(6, 12, 24)], [(0, 4, 4), (0, 6, 6)]),
    "sender flat in one row": ([(1, 5, 24)], [(0, 4, 4), (0, 6, 6)]),
    "receiver flat in one row": ([(0, 4, 4), (0, 6, 6)], [(7, 11, 24)]),
    "multi-level split": ([(4, 8, 24)], [(0, 2, 2), (0, 3, 3), (0, 4, 4)]),
    "both partial": ([(1, 3, 4), (2, 5, 6)], [(2, 4, 4), (0, 4, 6)]),
    "3-d against flat": ([(0, 2, 2), (0, 3, 3), (0, 4, 4)], [(0, 24, 24)]),
    "single dim": ([(2, 7, 10)], [(4, 9, 10)]),
    "4x6 against 2x4x3": ([(0, 4, 4), (0, 6, 6)], [(0, 2, 2), (0, 4, 4), (0, 3, 3)]),
    "4x6 against 2x12": ([(0, 4, 4), (0, 6, 6)], [(0, 2, 2), (0, 12, 12)]),
    "3x2x4 against 6x4": ([(0, 3, 3), (0, 2, 2), (0, 4, 4)], [(0, 6, 6), (0, 4, 4)]),
    "3x2x4 against part of 6x4": ([(1, 3, 3), (0, 2, 2), (1, 3, 4)], [(2, 4, 6), (0, 4, 4)]),
    "8x3 against 4x6": ([(2, 6, 8), (0, 3, 3)], [(0, 4, 4), (0, 6, 6)]),
    "2x2x6 against 4x3x2": ([(0, 2, 2), (0, 2, 2), (0, 6, 6)], [(0, 4, 4), (0, 3, 3), (0, 2, 2)]),
    "flat against 4-d": ([(0, 24, 48)], [(0, 2, 2), (0, 3, 3), (0, 2, 2), (0, 4, 4)]),
    "4x6 against part of 2x4x3": ([(0, 4, 4), (0, 6, 6)], [(0, 2, 2), (2, 4, 4), (0, 3, 3)]),
    "full against part": ([(0, 4, 4), (0, 6, 6)], [(0, 2, 2), (6, 12, 12)]),
    "same dims, partial overlap": ([(1, 3, 4), (0, 6, 6)], [(2, 4, 4), (2, 5, 6)]),
}
REFUSED_THERE = {
    "range over several rows": ([(5, 13, 24)], [(0, 4, 4), (0, 6, 6)], 1),
    "width does not divide": ([(0, 10, 12)], [(0, 3, 3), (0, 4, 4)], 1),
    "4x3 against 3x4": ([(0, 4, 4), (0, 3, 3)], [(0, 3, 3), (0, 4, 4)], 1),
    "coprime first dims": ([(0, 3, 3), (0, 8, 8)], [(0, 4, 4), (0, 6, 6)], 1),
    "receiver range over several rows": ([(0, 3, 3), (0, 4, 4)], [(1, 11, 12)], 1),
    "inner range not rectangular": ([(2, 6, 8), (0, 3, 3)], [(0, 4, 4), (1, 5, 6)], 1),
    "range in a 3-d tensor": ([(10, 20, 24)], [(0, 2, 2), (0, 3, 3), (0, 4, 4)], 1),
    "10x3 against 6x5": ([(0, 10, 10), (0, 3, 3)], [(0, 6, 6), (0, 5, 5)], 1),
    "partial receiver in a complex split": (
        [(1, 3, 3), (0, 2, 2), (1, 3, 4)],
        [(2, 5, 6), (0, 4, 4)],
        1,
    ),
    "flat range against columns: head, body, tail": ([(8, 28, 36)], [(0, 6, 6), (1, 4, 6)], 2),
    "columns of 4x6 against columns of 3x8": ([(0, 4, 4), (0, 3, 6)], [(0, 3, 3), (2, 5, 8)], 2),
}


@pytest.mark.parametrize(("sender", "receiver"), ALIGNED.values(), ids=ALIGNED)
def test_what_weightbridge_aligns_is_one_overlap(sender, receiver):
    a, b = box_of(*sender), box_of(*receiver)
    (overlap,) = intersect(a, b)
    assert {index for index, _ in pairs(overlap.region)} == dict(pairs(a)).keys() & dict(pairs(b)).keys()


def test_weightbridges_example():
    """[(6,12,24)] against [(0,4,4),(0,6,6)] is row 1, [(1,2,4),(0,6,6)]."""
    (overlap,) = intersect(box_of((6, 12, 24)), box_of((0, 4, 4), (0, 6, 6)))
    assert overlap == (6, 0, 6, (6,), (1,), (1,), (1,))


@pytest.mark.parametrize(("sender", "receiver", "needed"), REFUSED_THERE.values(), ids=REFUSED_THERE)
def test_what_weightbridge_refuses_takes_few_overlaps(sender, receiver, needed):
    a, b = box_of(*sender), box_of(*receiver)
    overlaps = intersect(a, b)
    assert sum(o.numel for o in overlaps) == len(dict(pairs(a)).keys() & dict(pairs(b)).keys())
    assert len(overlaps) == needed


def test_the_24_wide_interleaved_shard():
    """Rows of 24; the sender holds columns 6-11 and 18-23, the receiver columns 9-20 transposed."""
    interleaved = Box(6, 0, (5, 2, 6), (24, 12, 1), (12, 6, 1))
    columns = stored((5, 24), [slice(None), slice(9, 21)], order=[1, 0])
    (overlap,) = intersect(interleaved, columns)
    assert overlap == (9, 3, 0, (5, 2, 3), (24, 9, 1), (12, 3, 1), (1, 45, 5))


def test_fsdp_rows_against_tensor_parallel_columns_is_one_overlap_whatever_the_size():
    shape = (8192, 28672)
    (overlap,) = intersect(*sharded(shape, [Cut(0, 64, 63)]), *sharded(shape, [Cut(1, 8, 5)]))
    assert overlap.sizes == (128, 3584)
    assert overlap.checkpoint_offset == 8064 * 28672 + 5 * 3584


def test_a_flat_range_that_cuts_rows_is_head_body_and_tail():
    rows, columns = 10_000, 4096
    half = sharded((rows, columns), [Cut(1, 2, 1)])[0]
    overlaps = intersect(Box(3000, 0, (30_000_000,), (1,), (1,)), half)
    assert len(overlaps) == 3
    assert sum(o.numel for o in overlaps) == sum(
        len(range(max(3000, r * columns + 2048), min(30_003_000, (r + 1) * columns))) for r in range(rows)
    )


def test_cost_follows_the_boxes_not_the_elements():
    """2^40 elements; also strides that share no factor, where only one row in 99,991 meets."""
    start = time.perf_counter()
    wide = Box(7, 0, (1 << 20, 1 << 19), (1 << 20, 1), (1 << 19, 1))
    flat = Box(12345, 0, (1 << 39,), (1,), (1,))
    assert len(intersect(wide, flat)) <= 3
    coprime = intersect(Box(3, 0, (10**6,), (100_003,), (1,)), Box(0, 0, (10**6,), (99_991,), (1,)))
    assert len(coprime) == 1
    assert time.perf_counter() - start < 2


def test_no_overlap_and_empty_boxes_give_nothing():
    rows = [sharded((4, 6), [Cut(0, 2, part)])[0] for part in (0, 1)]
    assert intersect(*rows) == []
    assert intersect(Box(0, 0, (0,), (1,), (1,)), rows[0]) == []
    even, odd = Box(0, 0, (9,), (2,), (1,)), Box(1, 0, (9,), (2,), (1,))
    assert intersect(even, odd) == []


def test_a_box_that_does_not_invert_is_refused():
    with pytest.raises(ValueError, match="source strides"):
        intersect(Box(0, 0, (3, 4), (3, 1), (4, 1)), Box.identity(12))


def test_more_dimensions_than_the_kernels_take_are_cut():
    """Seven dimensions in storage order, from two boxes of few."""
    shape = (2, 3, 2, 3, 2, 3, 2)
    numel = torch.Size(shape).numel()
    dst = (1, 2, 6, 12, 36, 72, 216)
    a = Box(0, 0, (36, 12), (12, 1), (12, 1))
    b = Box(0, 0, shape, tuple(torch.Size(shape[j + 1 :]).numel() for j in range(7)), dst)
    overlaps = intersect(a, b)
    assert all(len(o.sizes) <= MAX_RANK for o in overlaps)
    assert sum(o.numel for o in overlaps) == numel
    got = {s: d for o in overlaps for s, d in pairs(o.sender_to_receiver)}
    assert got == dict(pairs(b))


def test_the_kernels_take_both_boxes_of_an_overlap():
    shape = (12, 10)
    weights = torch.arange(120, dtype=torch.int16)
    a, b = sharded(shape, [Cut(0, 3, 1)])[0], stored(shape, [slice(2, 9), slice(3, 8)], order=[1, 0])
    shard = weights.view(shape)[4:8].reshape(-1)
    storage = torch.zeros(35, dtype=torch.int16)
    (overlap,) = intersect(a, b)
    wire = torch.zeros(overlap.numel, dtype=torch.int16)
    scatter_changes(wire, overlap.send, torch.arange(40), shard)
    assert torch.equal(wire, weights.view(shape)[4:8, 3:8].reshape(-1))
    scatter_changes(storage, overlap.receive, torch.arange(overlap.numel), wire)
    assert torch.equal(storage.view(5, 7)[:, 2:6], weights.view(shape)[4:8, 3:8].t())
    assert fingerprint(wire, overlap.region) == fingerprint(weights, overlap.region._replace(
        dst_offset=overlap.checkpoint_offset, dst_strides=overlap.checkpoint_strides))  # fmt: skip


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_order_of_the_sides_only_swaps_the_coordinates(data):
    shape = data.draw(shapes())
    other = data.draw(reshaped(shape))
    a, b = data.draw(slices(shape)), data.draw(slices(other))
    swapped = [o._replace(sender_offset=o.receiver_offset, receiver_offset=o.sender_offset,
                          sender_strides=o.receiver_strides, receiver_strides=o.sender_strides)
               for o in intersect(b, a)]  # fmt: skip
    assert {frozenset(pairs(o.region)) for o in swapped} == {frozenset(pairs(o.region)) for o in intersect(a, b)}
