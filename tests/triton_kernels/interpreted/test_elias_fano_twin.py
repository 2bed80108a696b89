"""Level 0's Triton twin: the bytes of the numba twin, and its refusals, without one access out of bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from slipstream.triton_kernels.elias_fano import BLOCK, CorruptBlockError, cpu, gpu

CUT = gpu.Cut(chunk=32768, tile=8192)
SIGNED = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}

pytestmark = pytest.mark.usefixtures("guarded_memory")


def noise(n: int, width: int, seed: int = 0) -> Any:
    raw = np.random.default_rng(seed).integers(0, 256, n * width, np.uint8)
    return raw.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[width])


def tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(array.copy().view(SIGNED[array.itemsize]))


def check(numel: int, where: Any, width: int) -> Any:
    old, new = noise(numel, width), noise(numel, width, 1)
    positions = np.flatnonzero(where)
    expected = cpu.encode(positions, new[positions], numel, lambda: old)
    found = gpu.encode(torch.from_numpy(positions), tensor(new[positions]), numel, lambda: tensor(old), CUT)
    assert found.numpy().tobytes() == expected.tobytes()
    assert check_decode(expected, numel, width)
    return expected


def check_decode(data: Any, numel: int, width: int) -> bool:
    """Both twins give the same changes (True), or both refuse (False)."""
    unsigned = noise(1, width)
    try:
        expected = cpu.decode(data, numel, unsigned.dtype)
    except CorruptBlockError:
        with pytest.raises(CorruptBlockError):
            gpu.decode(torch.from_numpy(data.copy()), numel, tensor(unsigned).dtype, cut=CUT)
        return False
    positions, values = gpu.decode(torch.from_numpy(data.copy()), numel, tensor(unsigned).dtype, cut=CUT)
    assert np.array_equal(positions.numpy(), expected[0])
    assert values.numpy().tobytes() == expected[1].tobytes()
    return True


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("numel", "density"),
    [(1, 1.0), (300, 0.1), (BLOCK + 5, 0.01), (2 * BLOCK + 77, 0.95), (BLOCK, 0.4), (3 * BLOCK, 0.0001)],
)
def test_same_bytes_both_ways(numel: int, density: float, width: int) -> None:
    check(numel, np.random.default_rng(2).random(numel) < density, width)


def test_small_tiles_carry_on() -> None:
    numel = 9000
    positions = np.flatnonzero(np.random.default_rng(2).random(numel) < 0.3)
    values = noise(positions.size, 2)
    expected = cpu.encode(positions, values, numel, lambda: values)
    cut = gpu.Cut(tile=512)
    data = gpu.encode(torch.from_numpy(positions), tensor(values), numel, lambda: tensor(values), cut)
    assert data.numpy().tobytes() == expected.tobytes()
    found = gpu.decode(data, numel, torch.int16, cut=cut)
    assert np.array_equal(found[0].numpy(), positions)
    assert np.array_equal(found[1].numpy().view(np.uint16), values)


@pytest.mark.usefixtures("shuffled_programs")
def test_order_of_programs_does_not_matter() -> None:
    where = np.random.default_rng(0).random(4 * BLOCK) < np.repeat([0.01, 0.9, 0.0, 0.002], BLOCK)
    check(4 * BLOCK, where, 2)


def test_damaged_data_is_refused_as_on_the_host_or_gives_the_same() -> None:
    numel = BLOCK + 100
    good = check(numel, np.arange(numel) % 997 == 3, 2)
    rng = np.random.default_rng(0)
    outcomes = []
    for round_ in range(60):
        bad = good.copy()
        for _ in range(rng.integers(1, 3)):
            where = rng.integers(0, 8) if rng.random() < 0.3 else rng.integers(0, bad.size)
            bad[where] ^= 1 << rng.integers(0, 8)
        outcomes.append(check_decode(bad[: bad.size - (round_ % 6 == 0) * int(rng.integers(1, 12))], numel, 2))
    assert outcomes.count(True) >= 10
    assert outcomes.count(False) >= 10


def test_arguments_are_checked() -> None:
    for positions in ([5], [-1], [2, 2]):
        with pytest.raises(ValueError, match=r"ascending positions in 0\.\.4"):
            gpu.encode(torch.tensor(positions), torch.zeros(len(positions), dtype=torch.int16), 5, torch.Tensor, CUT)
    with pytest.raises(ValueError, match="expected 2 contiguous old elements"):
        gpu.encode(torch.tensor([0, 1]), torch.zeros(2, dtype=torch.int16), 2, lambda: torch.zeros(3), CUT)


def test_blocks_beyond_two_to_the_31() -> None:
    size = 2**31 + 5000
    positions = np.array([0, 2**31, 2**31 + 77, size - 1])
    values = noise(4, 2)
    data = gpu.encode(torch.from_numpy(positions), tensor(values), size, torch.Tensor, CUT)
    assert data.numpy().tobytes() == cpu.encode(positions, values, size, lambda: values).tobytes()
    found = gpu.decode(data, size, torch.int16, cut=CUT)
    assert np.array_equal(found[0].numpy(), positions)
    assert np.array_equal(found[1].numpy().view(np.uint16), values)
