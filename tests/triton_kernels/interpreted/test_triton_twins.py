"""Triton twins against the references. Small blocks and tiles: the interpreter takes milliseconds for each program."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream.triton_kernels import (
    Box,
    as_bits,
    as_unsigned_numpy,
    change_fingerprint,
    normalise,
    restrict,
)
from slipstream.triton_kernels.extract import gpu as extract
from slipstream.triton_kernels.extract import reference as extract_reference
from slipstream.triton_kernels.fingerprint import gpu as fingerprint
from slipstream.triton_kernels.fingerprint import reference as fingerprint_reference
from slipstream.triton_kernels.scatter import gpu as scatter
from slipstream.triton_kernels.scatter import reference as scatter_reference

from ..layouts import COLUMNS, LAYOUTS, ROWS, storage_of
from ..samples import DENSITIES, DTYPES, SIZES, changed_copy, random_bits, special_pairs

WIDTHS = [torch.uint8, torch.int16, torch.int32, torch.int64]


def check_extract(old: torch.Tensor, new: torch.Tensor, **sizes: int) -> None:
    old, new = as_bits(old), as_bits(new)
    found, expected = extract.extract(old, new, **sizes), extract_reference.extract(old, new)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def check_scatter(storage: torch.Tensor, box: Box, positions: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    twin, box = storage.clone(), normalise(box)
    found = scatter.write(storage, box, positions, values, tile=128)
    expected = scatter_reference.write(twin, box, positions, values)
    assert torch.equal(storage, twin)
    assert torch.equal(found.dst_index, expected.dst_index)
    assert torch.equal(found.old_values, expected.old_values)
    assert found.fingerprint_delta == expected.fingerprint_delta
    return storage


def check_restrict(box: Box, positions: torch.Tensor) -> None:
    found, expected = restrict(positions, box), restrict(positions.numpy(), box)
    assert np.array_equal(positions[found[0]].numpy(), positions.numpy()[expected[0]])
    assert np.array_equal(found[1].numpy(), expected[1])


@pytest.mark.parametrize("density", DENSITIES.values(), ids=DENSITIES)
@pytest.mark.parametrize("size", SIZES[:-1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extract(dtype: torch.dtype, size: int, density: float) -> None:
    old = random_bits(size, dtype)
    check_extract(old, changed_copy(old, density), block=2048, tile=1024)


@pytest.mark.parametrize("density", DENSITIES.values(), ids=DENSITIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2], ids=str)
def test_extract_with_the_real_block(dtype: torch.dtype, density: float) -> None:
    old = random_bits(SIZES[-1], dtype)  # a whole block and a tail
    check_extract(old, changed_copy(old, density))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values(dtype: torch.dtype) -> None:
    old, new = special_pairs(dtype)
    check_extract(old, new, block=64, tile=32, room=64)
    bits = as_bits(new)
    expected = fingerprint_reference.total(bits, Box.identity(bits.numel()))
    assert fingerprint.total(bits, Box.identity(bits.numel()), tile=32, tiles=2) == expected
    positions, values = extract_reference.extract(as_bits(old), bits)
    assert torch.equal(check_scatter(as_bits(old).clone(), Box.identity(old.numel()), positions, values), bits)


def test_blocks_that_overflow_their_slot_lose_nothing() -> None:
    old = random_bits(5 * 256 + 100, torch.bfloat16)
    new = old.clone()
    for block, changes in enumerate([31, 32, 33, 256, 0, 100]):
        span = slice(block * 256, block * 256 + changes)
        new[span] = changed_copy(old[span], 1.0)
    check_extract(old, new, block=256, tile=64, room=32)
    check_extract(old[: 5 * 256], new[: 5 * 256], block=256, tile=64, room=32)


def test_pieces_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "PIECE", 2)
    old = random_bits(4 * 256 + 7, torch.bfloat16)
    check_extract(old, changed_copy(old, 0.3), block=256, tile=64)


@pytest.mark.usefixtures("shuffled_programs")
def test_order_of_programs_does_not_matter() -> None:
    old = random_bits(ROWS * COLUMNS, torch.bfloat16)
    new = changed_copy(old, 0.2)
    new[:512] = changed_copy(old[:512], 1.0)
    check_extract(old, new, block=256, tile=64)
    bits = as_bits(new)
    expected = fingerprint_reference.total(bits, Box.identity(bits.numel()))
    assert fingerprint.total(bits, Box.identity(bits.numel()), tile=128, tiles=2) == expected
    box, numel = LAYOUTS["columns 10..35"]
    positions, values = extract_reference.extract(as_bits(old), bits)
    written = check_scatter(storage_of(as_bits(old), box, numel), box, positions, values)
    assert torch.equal(written, storage_of(bits, box, numel))


def test_blocks_beyond_two_to_the_31() -> None:
    block = 1024
    size = 2**31 + 2 * block + 5  # one byte an element, pages that are not touched do not exist
    old, new = (torch.empty(0, dtype=torch.uint8).resize_(size) for _ in range(2))
    old[2**31 :], new[2**31 :] = 0, 0
    new[[2**31 + 1, 2**31 + block, -1]] = torch.tensor([3, 4, 5], dtype=torch.uint8)
    positions, values = extract.extract(old, new, block, 256, first=2**31 // block)
    assert positions.tolist() == [2**31 + 1, 2**31 + block, size - 1]
    assert values.tolist() == [3, 4, 5]
    box = Box(2**40, 2**31, (700,), (1,), (1,))
    small = Box(2**40, 0, (700,), (1,), (1,))
    assert fingerprint.total(new, box, tile=128) == fingerprint_reference.total(new[2**31 :], small)
    changes = torch.tensor([5, 2**40 + 9, 2**40 + 699, 2**40 + 700]), torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
    applied = scatter.write(new, box, *changes, tile=4)
    assert applied.dst_index.tolist() == [2**31 + 9, 2**31 + 699]
    assert new[applied.dst_index].tolist() == [2, 3]


@pytest.mark.parametrize("size", [1, 255, 256, 257, 5000])
@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
def test_fingerprint(dtype: torch.dtype, size: int) -> None:
    bits = as_bits(random_bits(size, dtype))
    expected = fingerprint_reference.total(bits, Box.identity(size))
    assert fingerprint.total(bits, Box.identity(size), tile=256, tiles=4) == expected


@pytest.mark.parametrize("size", [0, 1, 1024, 3000])
@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
def test_change_fingerprint(dtype: torch.dtype, size: int) -> None:
    old, new = (as_bits(random_bits(size, dtype, seed)) for seed in (0, 1))
    positions = torch.arange(size) * 2**33
    expected = change_fingerprint(positions.numpy(), as_unsigned_numpy(old), as_unsigned_numpy(new))
    assert change_fingerprint(positions, old, new) == expected


@pytest.mark.usefixtures("shuffled_programs")
def test_restrict_over_several_programs() -> None:
    box = normalise(Box(5, 1000, (70, 11), (40, 2), (1, 75)))
    check_restrict(box, torch.arange(0, 70 * 40))


@pytest.mark.parametrize("dtype", [torch.int16, torch.int64], ids=str)
@pytest.mark.parametrize(("box", "numel"), LAYOUTS.values(), ids=LAYOUTS)
def test_layouts(box: Box, numel: int, dtype: torch.dtype) -> None:
    old = as_bits(random_bits(ROWS * COLUMNS, dtype))
    new = changed_copy(old, 0.1)
    storage = storage_of(old, box, numel)
    written = check_scatter(storage.clone(), box, *extract_reference.extract(old, new))
    assert torch.equal(written, storage_of(new, box, numel))
    check_restrict(normalise(box), extract_reference.extract(old, new)[0])
    if box.numel:
        expected = fingerprint_reference.total(storage, normalise(box))
        assert fingerprint.total(storage, normalise(box), tile=64, tiles=4) == expected


@pytest.mark.parametrize("positions", [[1, 1], [2, 1], [-1, 0], [0, 9, 9]])
def test_disorder_is_refused_before_the_first_write(positions: list[int]) -> None:
    storage = torch.zeros(5, dtype=torch.int16)
    with pytest.raises(ValueError, match="strictly ascending"):
        scatter.write(storage, Box.identity(5), torch.tensor(positions), torch.ones(len(positions), dtype=torch.int16))
    assert not storage.any()
