"""Packed changes: the compiled loops against plain Python, the scatter against its reference twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream.triton_kernels import (
    Box,
    PackedChanges,
    PackedUnits,
    Places,
    UnitsApplied,
    as_unsigned_numpy,
    normalise,
    scatter_packed,
    undo,
)
from slipstream.triton_kernels.bit_fields import GROUP, WIDEST, put_field_sums, put_fields, put_steps
from slipstream.triton_kernels.bit_planes import SLACK, bits_at, count_ones, list_ones, padded
from slipstream.triton_kernels.class_codec.reference import monotone
from slipstream.triton_kernels.jit import jit
from slipstream.triton_kernels.packed import RUN
from slipstream.triton_kernels.scatter import reference


@jit
def fields(word, width, leads, signs, plain, sums, steps):
    put_fields(word, width, plain, 0)
    put_steps(word, width, leads, signs, steps, 0)
    return put_field_sums(word, width, 7, sums, 0)


@pytest.mark.parametrize("width", range(WIDEST + 1))
@pytest.mark.parametrize("out", [np.int32, np.int64])
def test_fields_of_a_word(width, out):
    rng = np.random.default_rng(width)
    word, flags, signs = (int(n) for n in rng.integers(0, 1 << 62, 3))
    leads = [flags >> k & 1 for k in range(GROUP)]
    found = np.empty((3, GROUP), out)
    last = fields(np.uint64(word), width, np.uint64(int.from_bytes(bytes(leads), "little")), np.uint64(signs), *found)
    expected = [word >> k * width & (1 << width) - 1 for k in range(GROUP)]
    assert found[0].tolist() == expected
    assert found[1].tolist() == (7 + np.cumsum(expected)).tolist()
    assert last == found[1][-1]
    magnitudes = [field + (lead << width) + 1 for field, lead in zip(expected, leads, strict=True)]
    assert found[2].tolist() == [-m if signs >> k & 1 else m for k, m in enumerate(magnitudes)]


@pytest.mark.parametrize("density", [0.0, 0.02, 0.6, 1.0])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 200])
def test_set_bits_of_part_of_a_plane(density, size):
    rng = np.random.default_rng(size)
    bits = rng.random(8 * (size + 14)) < density
    plane = padded(np.packbits(bits, bitorder="little"))
    expected = np.flatnonzero(bits[8 * 5 : 8 * (5 + size)])
    assert count_ones(plane, 5, 5 + size) == expected.size
    places = np.empty(expected.size + SLACK, np.int32)
    list_ones(plane, 5, 5 + size, places)
    assert np.array_equal(places[: expected.size], expected)
    at = 8 * (size + 14) - 3
    assert bits_at(plane, at) == int(bits[at:] @ [1, 2, 4])


def packed(rng: np.random.Generator, numel: int, share: float, old: np.ndarray) -> tuple[PackedChanges, np.ndarray]:
    """Random changes, about half of the runs moved and one without changes, and their new values."""
    positions = np.flatnonzero(rng.random(numel) < share)
    bases = np.arange(0, numel, RUN)
    positions = positions[positions // RUN != 1]
    starts = np.append(np.searchsorted(positions, bases), positions.size)
    moved = rng.random(bases.size) < 0.5
    values = rng.integers(0, 1 << 8 * old.itemsize, positions.size, old.dtype)
    payload = values.astype(np.int64)
    steps = monotone(payload, old.itemsize) - monotone(old[positions].astype(np.int64), old.itemsize)
    payload = np.where(np.repeat(moved, np.diff(starts)), steps, payload)
    return PackedChanges(bases, starts, (positions % RUN).astype(np.uint16), payload, moved), values


def signed(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.view(f"i{array.itemsize}" if array.itemsize > 1 else "u1").copy())


BOXES = [
    Box.identity(5 * RUN + 100),
    Box(RUN // 2, 17, (2 * RUN,), (1,), (1,)),  # a slice
    Box(3 * RUN, 0, (1,), (1,), (1,)),
    Box(40, 3, (600, 300), (500, 1), (320, 1)),  # columns
]


@pytest.mark.parametrize("box", BOXES, ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
@pytest.mark.parametrize("share", [0.0005, 0.2])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_scatter_is_that_of_its_reference(box, dtype, share, threads):
    rng = np.random.default_rng(len(str(box)))
    numel = 5 * RUN + 100
    unit = rng.integers(0, 1 << 8 * np.dtype(dtype).itemsize, numel, dtype)
    changes, values = packed(rng, numel, share, unit)
    positions = changes.positions()
    assert np.array_equal(changes.values(unit[positions]), values)
    assert changes.within(RUN // 2, 3 * RUN) == tuple(np.searchsorted(positions, [RUN // 2, 3 * RUN]))
    storage = rng.integers(0, 100, 5 * RUN + 200, dtype)
    box = normalise(box)
    places = reference.locate(box, np.arange(numel))
    storage[places[places >= 0]] = unit[places >= 0]
    found, expected = signed(storage), signed(storage)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        applied = scatter_packed(found, box, changes)
    finally:
        torch.set_num_threads(before)
    told = reference.write(expected, box, torch.from_numpy(positions), signed(values))
    assert torch.equal(found, expected)
    assert torch.equal(applied.dst_index, told.dst_index)
    assert torch.equal(applied.old_values, told.old_values)
    assert applied.fingerprint_delta == told.fingerprint_delta
    undo(found, applied)
    assert np.array_equal(as_unsigned_numpy(found), storage)


@pytest.mark.parametrize("box", [Box.identity(RUN), Box(0, 0, (128, 256), (512, 1), (256, 1))], ids=str)
@pytest.mark.parametrize("step", [-40_000, 40_000])
def test_a_value_that_leaves_its_type_leaves_the_storage_alone(box, step):
    storage = torch.zeros(RUN, dtype=torch.int16)
    starts, moved = np.array([0, 3]), np.array([True])
    changes = PackedChanges(np.array([0]), starts, np.array([1, 5, 9], np.uint16), np.array([1, step, 1]), moved)
    with pytest.raises(ValueError, match="out of its type"):
        scatter_packed(storage, box, changes)
    assert not storage.any()


class Model:
    """Three units in four storages; the first unit lies in two of them and in part only, the second is not changed."""

    def __init__(self, width: int) -> None:
        rng = np.random.default_rng(width)
        whole = [rng.integers(0, 1 << 8 * width, n, f"u{width}") for n in (200_000, 5, 70_003)]
        held = [packed(rng, unit.size, share, unit)[0] for unit, share in zip(whole, (0.6, 0.0, 0.02), strict=True)]
        self.storages = [signed(rng.integers(0, 1 << 8 * width, n, f"u{width}")) for n in (150_000, 260_000, 5, 70_100)]
        self.boxes = [
            [(1, Box(0, 9, (200_000,), (1,), (1,))), (0, Box(70_000, 0, (130_000,), (1,), (1,)))],
            [(2, Box.identity(5))],
            [(3, Box(0, 97, (3, 20_000), (20_000, 1), (20_000, 1)))],
        ]
        for boxes, unit in zip(self.boxes, whole, strict=True):  # moved elements go on from what is there
            for storage, box in boxes:
                shifted = normalise(box)
                view = as_unsigned_numpy(self.storages[storage])[shifted.dst_offset :][: shifted.span]
                view[:] = unit[shifted.src_offset :][: shifted.span]
        self.units = np.array([2, 0, 1])  # in any order
        parts = [held[unit] for unit in self.units]
        sizes = np.cumsum([0, *(part.offsets.size for part in parts)])
        starts = [part.starts[:-1] + size for part, size in zip(parts, sizes, strict=False)]
        columns = [np.concatenate([part[k] for part in parts]) for k in (0, 2, 3, 4)]
        joined = PackedChanges(columns[0], np.concatenate([*starts, sizes[-1:]]), *columns[1:])
        self.changes = PackedUnits(np.cumsum([0, *(part.bases.size for part in parts)]), joined)

    def copy(self) -> list[torch.Tensor]:
        return [storage.clone() for storage in self.storages]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_units_written_at_once_are_what_each_is_by_itself(width, threads, monkeypatch):
    model = Model(width)
    expected, found, deltas = model.copy(), model.copy(), []
    for i, unit in enumerate(model.units):
        applied = [scatter_packed(expected[s], box, model.changes.unit(i)) for s, box in model.boxes[unit]]
        deltas.append(sum(each.fingerprint_delta for each in applied) % 2**64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    places = Places.of(found, model.boxes)
    assert places.width.tolist() == [width] * 3
    applied = UnitsApplied(places, model.units, model.changes)
    assert (len(applied.parts) > 3) == (threads > 1)
    assert applied.write() == 0
    assert applied.deltas.tolist() == deltas
    assert all(map(torch.equal, found, expected))
    applied.undo()
    assert all(map(torch.equal, found, model.storages))


def test_units_written_in_part_are_taken_back(monkeypatch):
    model = Model(2)
    found = model.copy()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    applied = UnitsApplied(Places.of(found, model.boxes), model.units, model.changes)
    applied.write(1, 3)
    assert not all(map(torch.equal, found, model.storages))
    applied.undo()
    assert all(map(torch.equal, found, model.storages))


def test_units_with_a_step_out_of_the_type_are_taken_back():
    model = Model(2)
    found = model.copy()
    changes = model.changes.changes
    changes.moved[:] = True
    changes.payload[:] = 1
    changes.payload[-1] = 1 << 17
    applied = UnitsApplied(Places.of(found, model.boxes), model.units, model.changes)
    assert applied.write() > 0
    applied.undo()
    assert all(map(torch.equal, found, model.storages))


def test_places_are_found_only_where_boxes_shift_and_storages_stay():
    storages = [torch.zeros(40, dtype=torch.int16), torch.zeros(40, dtype=torch.uint8)]
    whole, strided = Box.identity(8), Box(0, 0, (2, 4), (4, 1), (8, 1))
    places = Places.of(storages, [[(0, whole)], [(0, strided)], [(1, whole)], [(0, whole), (1, whole)], []])
    assert places.width.tolist() == [2, 0, 1, 0, 0]
    assert places.is_current
    storages[1].set_(torch.zeros(40, dtype=torch.uint8))
    assert not places.is_current
    with pytest.raises(ValueError, match="inside a storage"):
        Places.of(storages, [[(0, Box.identity(41))]])
