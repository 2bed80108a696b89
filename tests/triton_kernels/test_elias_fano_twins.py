"""Level 0 on the host: the compiled twin against the specification, and tensors as well as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.triton_kernels.elias_fano import BLOCK, CorruptBlockError, cpu, decode, encode, reference

WIDTHS = {1: (np.uint8, torch.uint8), 2: (np.uint16, torch.int16), 4: (np.uint32, torch.int32)}
WIDTHS[8] = (np.uint64, torch.int64)


def noise(n: int, width: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, n * width, np.uint8).view(WIDTHS[width][0])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("numel", "density"), [(1, 1.0), (9, 0.0), (300, 0.1), (BLOCK + 5, 0.01), (BLOCK, 0.9), (3 * BLOCK, 0.001)]
)
def test_twins_write_the_same_bytes(numel: int, density: float, width: int) -> None:
    old, new = noise(numel, width), noise(numel, width, 1)
    positions = np.flatnonzero(np.random.default_rng(2).random(numel) < density)
    data = cpu.encode(positions, new[positions], numel, lambda: old)
    assert data.tobytes() == reference.encode(positions, new[positions], old).tobytes()
    found, expected = cpu.decode(data, numel, old.dtype), reference.decode(data, numel, old.dtype)
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    after = old.copy()
    after[found[0]] = found[1]
    assert np.array_equal(after[positions], new[positions])


@pytest.mark.parametrize("width", WIDTHS)
def test_tensors_give_the_same_as_arrays(width: int) -> None:
    dtype = WIDTHS[width][1]
    old, new = noise(5000, width), noise(5000, width, 1)
    for share in (50, 1):
        positions = np.arange(0, 5000, share)
        expected = encode(positions, new[positions], 5000, lambda: old)
        signed = [torch.from_numpy(a.view(torch.empty(0, dtype=dtype).numpy().dtype)) for a in (new[positions], old)]
        data = encode(torch.from_numpy(positions), signed[0], 5000, lambda whole=signed[1]: whole)
        assert data.numpy().tobytes() == expected.tobytes()
        found = decode(data, 5000, dtype)
        assert found[1].dtype == dtype
        arrays = decode(expected, 5000, np.dtype(WIDTHS[width][0]))
        assert np.array_equal(found[0].numpy(), arrays[0])
        assert found[1].numpy().tobytes() == arrays[1].tobytes()


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_twins_agree_on_damaged_data(data: Any) -> None:
    numel = BLOCK + 100
    positions = np.arange(0, numel, 997)
    bad = cpu.encode(positions, noise(positions.size, 2), numel, lambda: noise(numel, 2)).copy()
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(0, bad.size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    bad = bad[: bad.size - data.draw(st.sampled_from([0, 0, 1, 9]))]
    try:
        expected = reference.decode(bad, numel, np.uint16)
    except CorruptBlockError:
        with pytest.raises(CorruptBlockError):
            cpu.decode(bad, numel, np.dtype(np.uint16))
        return
    found = cpu.decode(bad, numel, np.dtype(np.uint16))
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match="as_bits"):
        encode(torch.tensor([1]), torch.zeros(1), 5, lambda: torch.zeros(5))
    with pytest.raises(TypeError, match="uint8 data"):
        decode(torch.zeros(4, dtype=torch.int32), 5, torch.int16)
