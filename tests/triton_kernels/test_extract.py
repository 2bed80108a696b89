import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.triton_kernels import as_bits, extract_changes
from slipstream.triton_kernels.extract import cpu, reference

from .samples import DENSITIES, DTYPES, SIZES, changed_copy, random_bits, special_pairs


def same(found: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> bool:
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("density", DENSITIES.values(), ids=DENSITIES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matches_the_reference(dtype: torch.dtype, size: int, density: float) -> None:
    old = random_bits(size, dtype)
    new = changed_copy(old, density)
    positions, values = extract_changes(old, new)
    assert same((positions, values), reference.extract(as_bits(old), as_bits(new)))
    rebuilt = as_bits(old).clone()
    rebuilt[positions] = values
    assert torch.equal(rebuilt, as_bits(new))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values_are_compared_by_bits(dtype: torch.dtype) -> None:
    old, new = special_pairs(dtype)
    positions, values = extract_changes(old, new)
    expected = [i for i, (a, b) in enumerate(zip(as_bits(old).tolist(), as_bits(new).tolist(), strict=True)) if a != b]
    assert positions.tolist() == expected
    assert torch.equal(values, as_bits(new)[positions])


def test_float_comparison_would_be_wrong() -> None:
    old, new = torch.tensor([0.0, float("nan"), 1.0]), torch.tensor([-0.0, float("nan"), float("nan")])
    assert extract_changes(old, new)[0].tolist() == [0, 2]


def test_sources_that_are_not_contiguous_count_in_row_major_order() -> None:
    old = random_bits(7 * 10, torch.bfloat16).view(7, 10)
    new = changed_copy(old.reshape(-1), 0.3).view(7, 10)
    for a, b in ((old.T, new.T), (old[:, ::2], new[:, ::2]), (old[1:, 3:], new[1:, 3:])):
        expected = reference.extract(as_bits(a).contiguous().view(-1), as_bits(b).contiguous().view(-1))
        assert same(extract_changes(a, b), expected)
        assert same(extract_changes(a.contiguous(), b), expected)


@pytest.mark.parametrize("start", [1, 2, 3])
def test_storages_that_start_unaligned(start: int) -> None:
    old = random_bits(1000, torch.bfloat16)
    new = changed_copy(old, 0.1)
    assert same(
        extract_changes(old[start:], new[start:]), reference.extract(as_bits(old)[start:], as_bits(new)[start:])
    )


@settings(deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(0, 299), max_size=20), st.sampled_from([1, 2, 4, 8]))
def test_any_bytes(raw: bytes, touched: list[int], width: int) -> None:
    raw = raw[: len(raw) // width * width]
    dtype = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    old = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    new = old.clone()
    for place in touched:
        if place < new.numel():
            new[place] += 1
    assert same(extract_changes(old, new), reference.extract(old, new))


@settings(max_examples=5, deadline=None)
@given(st.floats(0.0, 1.0))
def test_threads_and_full_segments_keep_order(density: float) -> None:
    old = random_bits(40_000, torch.bfloat16)
    new = changed_copy(old, density)
    before, threads = cpu.LEAST, torch.get_num_threads()
    try:
        cpu.LEAST = 1000
        torch.set_num_threads(3)
        assert same(extract_changes(old, new), reference.extract(as_bits(old), as_bits(new)))
    finally:
        cpu.LEAST = before
        torch.set_num_threads(threads)


def test_positions_beyond_two_to_the_31() -> None:
    size = 2**31 + 3000  # one byte an element, pages that are not touched do not exist
    old, new = torch.zeros(0, dtype=torch.uint8), torch.zeros(0, dtype=torch.uint8)
    old, new = (t.resize_(size) for t in (old, new))
    start = size - 3000
    old[start:], new[start:] = 0, 0
    new[-1] = 7
    old_bits, new_bits = old.numpy(), new.numpy()
    positions, values = torch.empty(64, dtype=torch.int64), torch.empty(64, dtype=torch.uint8)
    stopped, count = cpu.scan(old_bits, new_bits, start, size, positions.numpy(), values.numpy())
    assert (stopped, count, positions[0].item(), values[0].item()) == (size, 1, size - 1, 7)


def test_mismatches_say_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"one shape, got \(2,\) and \(3,\)"):
        extract_changes(torch.zeros(2), torch.zeros(3))
    with pytest.raises(TypeError, match="one dtype"):
        extract_changes(torch.zeros(2), torch.zeros(2, dtype=torch.float16))
    with pytest.raises(ValueError, match="one device"):
        extract_changes(torch.zeros(2), torch.zeros(2, device="meta"))
    with pytest.raises(TypeError, match="expected tensors on cpu or cuda"):
        extract_changes(torch.zeros(2, device="meta"), torch.zeros(2, device="meta"))
