import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.triton_kernels import Box, as_bits, fingerprint, normalise
from slipstream.triton_kernels.fingerprint import cpu, reference

from .layouts import COLUMNS, LAYOUTS, ROWS, storage_of
from .samples import DTYPES, SIZES, changed_copy, random_bits

MODULUS = 2**64


def by_hand(bits: torch.Tensor, box: Box) -> int:
    """The definition in plain integers."""
    total = 0
    src, dst = reference.places(box)
    for i, s in zip(src.tolist(), dst.tolist(), strict=True):
        x = (i + 1) * 0x9E3779B97F4A7C15 % MODULUS
        mix = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93 % MODULUS | 1
        total += mix * (int(bits[s]) % (1 << (8 * bits.element_size())))
    return total % MODULUS


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_matches_the_reference(dtype: torch.dtype, size: int) -> None:
    bits = as_bits(random_bits(size, dtype))
    assert fingerprint(bits) == reference.total(bits, Box.identity(size))
    if size == 257:
        assert fingerprint(bits) == by_hand(bits, Box.identity(size))


@pytest.mark.parametrize(("box", "numel"), LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64], ids=str)
def test_boxes_match_the_reference_and_see_nothing_else(dtype: torch.dtype, box: Box, numel: int) -> None:
    checkpoint = as_bits(random_bits(ROWS * COLUMNS, dtype))
    storage = storage_of(checkpoint, box, numel)
    assert fingerprint(storage, box) == by_hand(storage, box) == reference.total(storage, normalise(box))
    assert fingerprint(storage_of(checkpoint, box, numel, fill=3), box) == fingerprint(storage, box)


def test_shards_add_up_and_threads_do_not_matter() -> None:
    checkpoint = as_bits(random_bits(ROWS * COLUMNS, torch.bfloat16))
    whole = fingerprint(checkpoint)
    halves = [Box(25 * part, 0, (ROWS, 25), (COLUMNS, 1), (25, 1)) for part in range(2)]
    assert sum(fingerprint(storage_of(checkpoint, box, ROWS * 25), box) for box in halves) % MODULUS == whole
    box = LAYOUTS["transposed"][0]
    storage = storage_of(checkpoint, box, ROWS * COLUMNS)
    assert fingerprint(storage, box) == whole
    pieces = [
        cpu.box_sum(storage.numpy().view("u2"), 0, 0, *cpu.box_arrays(box), k, k + 100) for k in range(0, 2400, 100)
    ]
    assert sum(map(int, pieces)) % MODULUS == whole


@settings(deadline=None)
@given(st.integers(0, 2**40), st.integers(1, 50), st.integers(2, 90))
def test_shards_of_any_cut_add_up(offset: int, cut: int, size: int) -> None:
    bits, cut = as_bits(random_bits(size, torch.float32)), min(cut, size)
    parts = [Box(offset, 0, (cut,), (1,), (1,)), Box(offset + cut, cut, (size - cut,), (1,), (1,))]
    whole = Box(offset, 0, (size,), (1,), (1,))
    assert sum(fingerprint(bits, part) for part in parts) % MODULUS == fingerprint(bits, whole)


@settings(deadline=None)
@given(st.integers(0, 499), st.integers(0, 499))
def test_swapping_two_different_elements_shows(one: int, other: int) -> None:
    bits = as_bits(changed_copy(random_bits(500, torch.bfloat16), 1.0))
    swapped = bits.clone()
    swapped[one], swapped[other] = bits[other], bits[one]
    assert (fingerprint(swapped) == fingerprint(bits)) == bool(bits[one] == bits[other])


def test_what_does_not_fit_is_refused() -> None:
    bits = torch.zeros(10, dtype=torch.int16)
    with pytest.raises(TypeError, match="as_bits"):
        fingerprint(torch.zeros(10))
    with pytest.raises(ValueError, match="1-D contiguous"):
        fingerprint(bits.view(2, 5))
    with pytest.raises(ValueError, match="1-D contiguous"):
        fingerprint(bits[::2])
    with pytest.raises(ValueError, match="storage of 10 elements, got one that ends at 11"):
        fingerprint(bits, Box(0, 6, (5,), (1,), (1,)))
    seven = Box(0, 0, (2,) * 7, tuple(3**j for j in range(7)), tuple(2 ** (6 - j) for j in range(7)))
    with pytest.raises(ValueError, match="at most 6 dimensions"):
        fingerprint(torch.zeros(128, dtype=torch.int16), seven)
