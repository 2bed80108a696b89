"""Level 0 blocks: round trips, sizes, and refusal of anything an encoder does not write."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit_values import DTYPE_OF_WIDTH, Old

from slipstream.core.weights.wire import bits_dtype, elias_fano
from slipstream.triton_kernels.elias_fano import BLOCK, HEADER, CorruptBlockError


def unit(numel, width):
    return Old(np.zeros(numel, bits_dtype(width)), DTYPE_OF_WIDTH[width])


def encode(positions, dense, numel, width):
    """Changes to what `dense` (bytes) holds at `positions`, from a unit that equals it everywhere else."""
    positions = np.asarray(positions, np.int64)
    new = dense.view(bits_dtype(width))
    old = new.copy()
    old[positions] ^= 1
    return elias_fano.encode(Old(old, DTYPE_OF_WIDTH[width]), positions, new[positions])


def decode(data, numel, width):
    return elias_fano.decode(data, unit(numel, width))


def decoded_tensor(data, numel, width):
    positions, values = decode(data, numel, width)
    assert np.all(np.diff(positions) > 0)
    tensor = np.zeros((numel, width), np.uint8)
    tensor[positions] = values.view(np.uint8).reshape(-1, width)
    return positions, tensor


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("density", [0.0, 0.001, 0.01, 0.2, 0.95, 1.0])
@pytest.mark.parametrize("numel", [1, 255, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 77])
def test_what_is_encoded_comes_back(numel, density, width):
    rng = np.random.default_rng(numel + width)
    dense = rng.integers(0, 256, numel * width).astype(np.uint8)
    positions = np.flatnonzero(rng.random(numel) < density)
    back, tensor = decoded_tensor(encode(positions, dense, numel, width), numel, width)
    assert np.isin(positions, back).all(), "a dense block may carry more positions, never fewer"
    assert np.array_equal(tensor[back], dense.reshape(numel, width)[back])


@settings(deadline=None, max_examples=60)
@given(st.sets(st.integers(0, 2 * BLOCK + 9), max_size=300))
def test_any_position_set_comes_back(chosen):
    numel = 2 * BLOCK + 10
    dense = np.arange(2 * numel, dtype=np.uint32).astype(np.uint8)
    back, _ = decoded_tensor(encode(sorted(chosen), dense, numel, 2), numel, 2)
    assert back.tolist() == sorted(chosen)


def test_nothing_changed_costs_nothing():
    assert encode([], np.zeros(20, np.uint8), 10, 2).size == 0


@pytest.mark.parametrize(("density", "bar"), [(0.006, 26.5), (0.01, 26.5), (0.016, 26.5)])
def test_bits_per_changed_bf16_element_meet_the_bar(density, bar):
    rng = np.random.default_rng(0)
    numel = 4 << 20
    positions = np.flatnonzero(rng.random(numel) < density)
    data = encode(positions, np.zeros(2 * numel, np.uint8), numel, 2)
    assert 8 * data.size / positions.size <= bar


def test_a_block_is_never_larger_than_a_dense_copy():
    rng = np.random.default_rng(1)
    dense = rng.integers(0, 256, 2 * BLOCK).astype(np.uint8)
    for density in (0.5, 0.9, 0.97, 1.0):
        positions = np.flatnonzero(rng.random(BLOCK) < density)
        assert encode(positions, dense, BLOCK, 2).size <= 2 * BLOCK + HEADER


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damaged_blocks_are_refused_or_stay_in_bounds(data):
    """Whatever the bytes are, decoding raises CorruptBlockError or yields ascending positions below numel."""
    numel = BLOCK + 100
    dense = np.arange(2 * numel, dtype=np.uint32).astype(np.uint8)
    good = encode(range(0, numel, 997), dense, numel, 2)
    bad = good.copy()
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(0, bad.size - 1))] = data.draw(st.integers(0, 255))
    bad = bad[: data.draw(st.integers(0, bad.size))]
    try:
        positions, values = decode(bad, numel, 2)
    except CorruptBlockError:
        return
    assert values.size == positions.size
    assert positions.size == 0 or (positions[0] >= 0 and positions[-1] < numel and np.all(np.diff(positions) > 0))


@pytest.mark.parametrize("cut", [1, HEADER - 1, HEADER, HEADER + 1])
def test_truncation_is_refused(cut):
    dense = np.zeros(2 * BLOCK, np.uint8)
    with pytest.raises(CorruptBlockError, match="truncated"):
        decode(encode([1, 2, 3], dense, BLOCK, 2)[:-cut], BLOCK, 2)
