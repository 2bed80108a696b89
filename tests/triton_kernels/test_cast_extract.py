"""The fused cast on the host: torch's rounding, in place, and the changes it makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.triton_kernels import as_bits
from slipstream.triton_kernels.cast_extract import cast_extract, cpu, reference

from .samples import SIZES, changed_copy

KINDS = [torch.bfloat16, torch.float16]


def every_upper_half() -> torch.Tensor:
    """Each upper half of a float32 with lower halves around every rounding boundary."""
    lower = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    bits = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16))[:, None] | lower
    return torch.from_numpy(bits.reshape(-1).view(np.float32))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rounds_as_torch_does_and_keeps_nan(kind: torch.dtype) -> None:
    master = every_upper_half()
    weights = torch.zeros(master.numel(), dtype=kind)
    cast_extract(master, weights)
    nan = master.isnan()
    assert torch.equal(as_bits(weights)[~nan], as_bits(master.to(kind))[~nan])
    assert weights[nan].isnan().all()
    assert torch.equal(weights[nan].signbit(), master[nan].signbit())


@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_matches_the_reference(kind: torch.dtype, size: int, density: float) -> None:
    master = torch.randn(size, generator=torch.Generator().manual_seed(size)) * 0.02
    weights = changed_copy(master.to(kind), density)
    twin, before = weights.clone(), weights.clone()
    changes = cast_extract(master, weights)
    expected = reference.cast_extract(as_bits(master), as_bits(twin), kind == torch.float16)
    assert all(torch.equal(a, b) for a, b in zip(changes, expected, strict=True))
    assert torch.equal(as_bits(weights), as_bits(twin))
    assert torch.equal(as_bits(weights), as_bits(master.to(kind)))
    as_bits(weights)[changes.positions] = changes.old_values
    assert torch.equal(as_bits(weights), as_bits(before))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 2**32 - 1), max_size=150), st.sampled_from(KINDS))
def test_any_bits(raw: list[int], kind: torch.dtype) -> None:
    master = torch.from_numpy(np.array(raw, np.uint32).view(np.float32))
    weights = torch.zeros(master.numel(), dtype=kind)
    twin = weights.clone()
    found = cast_extract(master, weights)
    expected = reference.cast_extract(as_bits(master), as_bits(twin), kind == torch.float16)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.equal(as_bits(weights), as_bits(twin))
    assert cast_extract(master, weights).positions.numel() == 0


@pytest.mark.parametrize("compresses", [False, True])
@pytest.mark.parametrize("density", [0.03, 0.2, 0.6])
def test_crowded_tiles_are_listed_with_and_without_compressing(
    density: float, compresses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fallback of LLVM's stands in where the processor has no such instruction."""
    monkeypatch.setattr(cpu, "COMPRESSES", compresses)
    master = torch.randn(5 * cpu.TILE + 77, generator=torch.Generator().manual_seed(1)) * 0.02
    weights = changed_copy(master.bfloat16(), density)
    twin = weights.clone()
    changes = cast_extract(master, weights)
    expected = reference.cast_extract(as_bits(master), as_bits(twin), False)
    assert all(torch.equal(a, b) for a, b in zip(changes, expected, strict=True))
    assert torch.equal(as_bits(weights), as_bits(twin))


def test_threads_and_full_segments_keep_order(monkeypatch: pytest.MonkeyPatch) -> None:
    master = torch.randn(40_000)
    weights = changed_copy(master.to(torch.bfloat16), 0.5)
    expected = torch.nonzero(as_bits(weights) != as_bits(master.to(torch.bfloat16))).view(-1)
    threads = torch.get_num_threads()
    monkeypatch.setattr(cpu, "LEAST", 1000)
    try:
        torch.set_num_threads(3)
        found = cast_extract(master, weights)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found.positions, expected)


def test_more_changes_than_the_probe_saw_are_listed_in_order() -> None:
    """The first tile, which is the one that is probed of so few, has none."""
    master = torch.randn(20 * cpu.TILE)
    weights = changed_copy(master.to(torch.bfloat16), 0.5)
    weights[: cpu.TILE] = master[: cpu.TILE].to(torch.bfloat16)
    expected = torch.nonzero(as_bits(weights) != as_bits(master.to(torch.bfloat16))).view(-1)
    assert torch.equal(cast_extract(master, weights).positions, expected)
    assert torch.equal(weights, master.to(torch.bfloat16))


def test_views_share_memory_and_shapes_stay() -> None:
    master, weights = torch.randn(8, 6), torch.zeros(10, 6, dtype=torch.bfloat16)
    changes = cast_extract(master, weights[1:9])
    assert torch.equal(weights[1:9], master.to(torch.bfloat16))
    assert changes.positions.tolist() == list(range(48))
    assert not weights[0].any()


def test_what_does_not_fit_is_refused() -> None:
    master, weights = torch.zeros(6), torch.zeros(6, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="float32 master"):
        cast_extract(master.double(), weights)
    with pytest.raises(TypeError, match="bf16 or fp16"):
        cast_extract(master, master.clone())
    with pytest.raises(ValueError, match="one shape"):
        cast_extract(master, weights[1:])
    with pytest.raises(ValueError, match="contiguous"):
        cast_extract(master[::2], weights[::2])
    with pytest.raises(ValueError, match="one device"):
        cast_extract(master, torch.zeros(6, dtype=torch.bfloat16, device="meta"))
