import pytest
import torch

from slipstream.triton_kernels import Box, as_bits, extract_changes, fingerprint, normalise, scatter_changes, undo
from slipstream.triton_kernels.scatter import cpu, reference

from .layouts import COLUMNS, LAYOUTS, ROWS, storage_of
from .samples import DENSITIES, DTYPES, SIZES, changed_copy, random_bits, special_pairs

MODULUS = 2**64


@pytest.mark.parametrize("density", DENSITIES.values(), ids=DENSITIES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_applying_what_was_extracted_gives_the_new_version(dtype: torch.dtype, size: int, density: float) -> None:
    old = random_bits(size, dtype)
    new = changed_copy(old, density)
    storage, box = as_bits(old).clone(), Box.identity(size)
    applied = scatter_changes(storage, box, *extract_changes(old, new))
    assert torch.equal(storage, as_bits(new))
    assert (fingerprint(as_bits(old)) + applied.fingerprint_delta) % MODULUS == fingerprint(storage)
    undo(storage, applied)
    assert torch.equal(storage, as_bits(old))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values_arrive_bit_for_bit(dtype: torch.dtype) -> None:
    old, new = special_pairs(dtype)
    storage = as_bits(old).clone()
    scatter_changes(storage, Box.identity(old.numel()), *extract_changes(old, new))
    assert torch.equal(storage, as_bits(new))


@pytest.mark.parametrize("density", [0.05, 1.0])
@pytest.mark.parametrize(("box", "numel"), LAYOUTS.values(), ids=LAYOUTS)
def test_layouts(box: Box, numel: int, density: float) -> None:
    old = random_bits(ROWS * COLUMNS, torch.bfloat16)
    new = changed_copy(old, density)
    positions, values = extract_changes(old, new)
    storage, twin = (storage_of(as_bits(old), box, numel) for _ in range(2))
    before = fingerprint(storage, box)
    applied = scatter_changes(storage, box, positions, values)
    assert torch.equal(storage, storage_of(as_bits(new), box, numel))
    assert (before + applied.fingerprint_delta) % MODULUS == fingerprint(storage, box)
    expected = reference.write(twin, normalise(box), positions, values)
    assert torch.equal(applied.dst_index, expected.dst_index)
    assert torch.equal(applied.old_values, expected.old_values)
    assert applied.fingerprint_delta == expected.fingerprint_delta
    undo(storage, applied)
    assert torch.equal(storage, storage_of(as_bits(old), box, numel))


def test_parts_in_any_order_and_any_number_of_threads() -> None:
    old = random_bits(ROWS * COLUMNS, torch.bfloat16)
    new = changed_copy(old, 0.5)
    positions, values = extract_changes(old, new)
    box, numel = LAYOUTS["columns 10..35"]
    storage, least, threads = storage_of(as_bits(old), box, numel), cpu.LEAST, torch.get_num_threads()
    try:
        cpu.LEAST = 10
        torch.set_num_threads(3)
        for part in (slice(700, None), slice(0, 300), slice(300, 700)):
            scatter_changes(storage, box, positions[part], values[part])
    finally:
        cpu.LEAST = least
        torch.set_num_threads(threads)
    assert torch.equal(storage, storage_of(as_bits(new), box, numel))


def test_positions_beyond_two_to_the_31() -> None:
    far = 2**33
    storage = torch.zeros(4, dtype=torch.int16)
    positions, values = torch.tensor([5, far, far + 3, far + 4]), torch.tensor([9, 7, -8, 9], dtype=torch.int16)
    applied = scatter_changes(storage, Box(far, 0, (4,), (1,), (1,)), positions, values)
    assert storage.tolist() == [7, 0, 0, -8]
    assert applied.dst_index.tolist() == [0, 3]


@pytest.mark.parametrize("positions", [[1, 1], [2, 1], [-1, 0], [0, 3, 2], [0, 9, 9]])
def test_disorder_is_refused_before_the_first_write(positions: list[int]) -> None:
    storage = torch.zeros(5, dtype=torch.int16)
    values = torch.ones(len(positions), dtype=torch.int16)
    with pytest.raises(ValueError, match="strictly ascending"):
        scatter_changes(storage, Box.identity(5), torch.tensor(positions), values)
    assert not storage.any()


def test_what_does_not_fit_is_refused_before_the_first_write() -> None:
    storage, positions, values = torch.zeros(5, dtype=torch.int16), torch.tensor([0]), torch.ones(1, dtype=torch.int16)
    with pytest.raises(TypeError, match=r"torch.int16 values, got torch.int64 and torch.int32"):
        scatter_changes(storage, Box.identity(5), positions, values.int())
    with pytest.raises(TypeError, match="int64 positions"):
        scatter_changes(storage, Box.identity(5), positions.int(), values)
    with pytest.raises(ValueError, match="one length"):
        scatter_changes(storage, Box.identity(5), torch.tensor([0, 1]), values)
    with pytest.raises(ValueError, match="storage of 5 elements"):
        scatter_changes(storage, Box.identity(6), positions, values)
    with pytest.raises(ValueError, match="one device"):
        scatter_changes(storage, Box.identity(5), positions.to("meta"), values)
    assert not storage.any()


def test_undo_wants_the_storage_that_was_written() -> None:
    storage = torch.zeros(5, dtype=torch.int16)
    applied = scatter_changes(storage, Box.identity(5), torch.tensor([4]), torch.ones(1, dtype=torch.int16))
    with pytest.raises(TypeError, match=r"storage of torch.int16"):
        undo(storage.int(), applied)
    with pytest.raises(ValueError, match="at least 5 elements, got 4"):
        undo(storage[:4], applied)
