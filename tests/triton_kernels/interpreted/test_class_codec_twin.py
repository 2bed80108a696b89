"""The class codec's Triton twin: the bytes of the numba twin, and its refusals, without one access out of bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from slipstream.triton_kernels.class_codec import BF16, FP8, FP16, FP32, Classes, CorruptBlockError, cpu, gpu
from slipstream.triton_kernels.class_codec.reference import packed, varint

from ..samples import SPECIAL

CUT = gpu.Cut(block=1024, chunk=512, tile=256, gaps=256, small=128)
COARSE = gpu.Cut(block=1024, chunk=1024, tile=1024, gaps=256, small=256)  # fewer programs, where many cases count
ONE = Classes((), (0,))
FOUR = Classes((113, 115, 118), (2, 1, 0, 0))
EIGHT = Classes((111, 113, 114, 115, 117, 119, 121), (3, 0, 0, 0, 0, 0, 0, 0))
MAPS = {"level 1": ONE, "four": FOUR, "level 2": EIGHT}
SIGNED = {1: np.uint8, 2: np.int16, 4: np.int32}

pytestmark = pytest.mark.usefixtures("guarded_memory")


def tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(array.copy().view(SIGNED[array.itemsize]))


def update(n: int, density: float, most: int, seed: int = 0) -> tuple[Any, Any]:
    """bf16 weights N(0, 0.02), and a copy in which that share moved by up to `most` units of the last place."""
    rng = np.random.default_rng(seed)
    weights = torch.from_numpy(rng.standard_normal(n).astype(np.float32) * np.float32(0.02))
    old = weights.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    step = rng.integers(-most, most, n, endpoint=True).astype(np.uint16)
    return old, np.where(rng.random(n) < density, old + step, old)


def noise(n: int, dtype: Any, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, n * np.dtype(dtype).itemsize, np.uint8).view(dtype)


def check(old: Any, new: Any, classes: Classes, exponent: Any = BF16, cut: gpu.Cut = CUT) -> Any:
    """Both directions against the numba twin; returns the bytes."""
    positions = np.flatnonzero(old != new)
    expected = cpu.encode(old, positions, new[positions], classes, exponent, cut.block)
    found = gpu.encode(tensor(old), torch.from_numpy(positions), tensor(new[positions]), classes, exponent, cut)
    assert found.numpy().tobytes() == expected.tobytes()
    check_decode(expected, old, classes, exponent, cut)
    return expected


def check_decode(data: Any, old: Any, classes: Classes, exponent: Any = BF16, cut: gpu.Cut = CUT) -> bool:
    """Both twins give the same changes (True), or both refuse (False)."""
    arguments = tensor(old), classes, exponent, cut
    try:
        expected = cpu.decode(data, old.size, old.dtype, old, classes, exponent, cut.block)
    except CorruptBlockError:
        with pytest.raises(CorruptBlockError):
            gpu.decode(torch.from_numpy(data.copy()), old.size, arguments[0].dtype, *arguments)
        return False
    positions, values = gpu.decode(torch.from_numpy(data.copy()), old.size, arguments[0].dtype, *arguments)
    assert np.array_equal(positions.numpy(), expected[0])
    assert np.array_equal(values.numpy().view(old.dtype), expected[1])
    return True


@pytest.mark.parametrize("classes", MAPS.values(), ids=MAPS)
@pytest.mark.parametrize(
    ("n", "density", "most"), [(3000, 0.02, 2), (2048, 0.3, 40), (1500, 0.8, 1), (1025, 0.97, 300), (40, 1.0, 3)]
)
def test_same_bytes_both_ways(n: int, density: float, most: int, classes: Classes) -> None:
    check(*update(n, density, most), classes)


@pytest.mark.parametrize(
    ("dtype", "exponent", "kind"),
    [
        (np.uint16, BF16, torch.bfloat16),
        (np.uint16, FP16, torch.float16),
        (np.uint32, FP32, torch.float32),
        (np.uint8, FP8, torch.float8_e4m3fn),
    ],
    ids=["bf16", "fp16", "fp32", "e4m3"],
)
def test_every_width_with_special_values_in_all_modes(dtype: Any, exponent: Any, kind: torch.dtype) -> None:
    special = np.array(SPECIAL[kind], dtype)
    old, new = noise(4 * 1024 + 77, dtype), noise(4 * 1024 + 77, dtype, 1)
    keep = np.random.default_rng(2).random(old.size)
    spared = np.arange(old.size) // 1024
    new = np.where(keep < np.choose(spared, [0.97, 0.0, 0.3, 1.0, 0.6]), old, new)  # rare, a copy, values, none, steps
    new[4 * 1024 :] = old[4 * 1024 :] ^ (keep[4 * 1024 :] < 0.2)
    new[: special.size], old[: special.size] = special, special[::-1]
    check(old, new, Classes((20, 100), (3, 1, 7)), exponent)
    check(old, new, ONE, exponent)


def test_blocks_of_the_real_size() -> None:
    old, new = update(8192 + 3, 0.01, 2)
    check(old, new, EIGHT, cut=gpu.Cut())


def test_nothing_and_one_change() -> None:
    old, _ = update(3000, 0.0, 1)
    assert check(old, old, EIGHT).size == 0
    for at in (0, 1024, 2999):
        new = old.copy()
        new[at] ^= 1
        check(old, new, EIGHT)


def test_waves_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "WAVE", 100)
    old, new = update(6 * 1024 + 5, 0.05, 3)
    new[2048:3072] = old[2048:3072]
    new[3072:4096] = noise(1024, np.uint16)
    assert len(list(gpu.waves([60, 30, 20, 500, 40, 40]))) == 4
    check(old, new, EIGHT)
    check(old, new, ONE)


@pytest.mark.usefixtures("shuffled_programs")
def test_order_of_programs_does_not_matter() -> None:
    old, new = update(3 * 1024 + 500, 0.2, 9)
    new[1024:1500] = noise(476, np.uint16)
    check(old, new, EIGHT)
    check(old, new, ONE)


def test_one_class_asks_for_the_old_values_it_needs() -> None:
    old, new = update(3000, 0.05, 3)
    positions = np.flatnonzero(old != new)
    data = torch.from_numpy(cpu.encode(old, positions, new[positions], ONE, BF16, CUT.block))
    asked = []

    def at(wanted: torch.Tensor) -> torch.Tensor:
        asked.append(wanted)
        return tensor(old)[wanted]

    found = gpu.decode(data, 3000, torch.int16, at, ONE, BF16, CUT)
    assert [wanted.tolist() for wanted in asked] == [positions.tolist()]
    assert np.array_equal(found[1].numpy().view(np.uint16), new[positions])


def test_a_damaged_byte_is_refused_as_on_the_host_or_changes_the_same() -> None:
    old, new = update(2600, 0.1, 9)
    new[2048:2300] = noise(252, np.uint16)
    good = {name: check(old, new, classes) for name, classes in (("level 1", ONE), ("level 2", EIGHT))}
    rng = np.random.default_rng(0)
    outcomes = []
    for round_ in range(24):
        name = ("level 1", "level 2")[round_ % 2]
        bad = good[name].copy()
        for _ in range(rng.integers(1, 3)):
            where = rng.integers(0, 40) if rng.random() < 0.5 else rng.integers(0, bad.size)
            bad[where] ^= 1 << rng.integers(0, 8)
        outcomes.append(check_decode(bad[: bad.size - (round_ % 10 == 0)], old, MAPS[name], cut=COARSE))
    assert outcomes.count(True) >= 2
    assert outcomes.count(False) >= 10


def test_arbitrary_bytes_stay_in_bounds() -> None:
    """Behind a directory that fits, so that most get as far as the blocks; half of them with a plausible header."""
    old = noise(1100, np.uint16)
    rng = np.random.default_rng(1)
    for round_ in range(18):
        body = rng.integers(0, 256, rng.integers(1, 60), np.uint8).tobytes()
        if round_ % 2:
            changes = int(rng.integers(1, 20))
            body = b"\1" + varint(2 * int(rng.integers(0, 12))) + varint(changes) + varint(changes // 2) + body
        data = np.frombuffer(packed([1, 0]) + varint(len(body)) + body, np.uint8)
        check_decode(data, old, (ONE, EIGHT, Classes((60, 120), (5, 2, 0)))[round_ % 3], cut=COARSE)


def test_a_wrong_old_value_stays_in_bounds() -> None:
    old, new = update(2048, 0.2, 5)
    data = check(old, new, EIGHT)
    other = old.copy()
    other[[3, 700]] ^= 0x7F80
    check_decode(data, other, EIGHT)
    check_decode(data, noise(2048, np.uint16), EIGHT)


def test_arguments_are_checked() -> None:
    old = torch.zeros(10, dtype=torch.int16)
    with pytest.raises(ValueError, match=r"ascending positions in 0\.\.9"):
        gpu.encode(old, torch.tensor([10]), old[:1] + 1, ONE, BF16, CUT)
    with pytest.raises(ValueError, match="differ from the old"):
        gpu.encode(old, torch.tensor([3]), old[:1], ONE, BF16, CUT)
    data = gpu.encode(old, torch.tensor([3]), old[:1] + 5, ONE, BF16, CUT)
    with pytest.raises(ValueError, match="expected 1 old elements"):
        gpu.decode(data, 10, torch.int16, lambda at: old, ONE, BF16, CUT)


def test_blocks_beyond_two_to_the_31() -> None:
    size = 2**31 + 5000  # one byte an element, pages that are not touched do not exist
    old = torch.empty(0, dtype=torch.uint8).resize_(size)
    old[2**31 :] = torch.from_numpy(noise(5000, np.uint8))
    positions = torch.tensor([2**31, 2**31 + 77, size - 1])
    values = old[positions] ^ 3
    classes = Classes((60,), (0, 1))
    cut = gpu.Cut(chunk=32768, tile=32768, gaps=256, small=128)
    data = gpu.encode(old, positions, values, classes, FP8, cut)
    host = old.numpy(), positions.numpy(), values.numpy()
    assert data.numpy().tobytes() == cpu.encode(*host, classes, FP8).tobytes()
    found = gpu.decode(data, size, torch.uint8, old, classes, FP8, cut)
    assert torch.equal(found[0], positions)
    assert torch.equal(found[1], values)
