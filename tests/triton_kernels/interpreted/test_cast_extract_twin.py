"""The fused cast's Triton twin, bit for bit and inside its memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream.triton_kernels import as_bits
from slipstream.triton_kernels.cast_extract import gpu, reference

from ..samples import changed_copy

pytestmark = pytest.mark.usefixtures("guarded_memory")

KINDS = [torch.bfloat16, torch.float16]


def check(master: torch.Tensor, weights: torch.Tensor, **sizes: int) -> None:
    half = weights.dtype == torch.float16
    bits, out = as_bits(master), as_bits(weights).clone()
    twin = out.clone()
    expected = reference.cast_extract(bits, twin, half)
    found = gpu.cast_extract(bits, out, half, **sizes)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.equal(out, twin)


@pytest.mark.parametrize("density", [0.0, 0.02, 1.0])
@pytest.mark.parametrize("size", [1, 255, 2048, 5000])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_matches_the_reference(kind: torch.dtype, size: int, density: float) -> None:
    master = torch.randn(size, generator=torch.Generator().manual_seed(size)) * 0.02
    check(master, changed_copy(master.to(kind), density), block=2048, tile=1024)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rounds_every_exponent_and_nan(kind: torch.dtype) -> None:
    lower = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    upper = np.arange(0, 1 << 16, 7, dtype=np.uint32) << np.uint32(16)
    master = torch.from_numpy((upper[:, None] | lower).reshape(-1).view(np.float32))
    check(master, torch.zeros(master.numel(), dtype=kind), block=65536, tile=8192)


@pytest.mark.usefixtures("shuffled_programs")
def test_blocks_that_overflow_their_slot_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PIECE", 4)
    master = torch.randn(5 * 256 + 100)
    weights = master.to(torch.bfloat16)
    for block, changes in enumerate([31, 32, 33, 256, 0, 100]):
        span = slice(block * 256, block * 256 + changes)
        weights[span] = changed_copy(weights[span], 1.0)
    check(master, weights, block=256, tile=64, room=32)
    check(master[: 5 * 256], weights[: 5 * 256], block=256, tile=64, room=32)


def test_blocks_beyond_two_to_the_31() -> None:
    block = 1024
    size = 2**31 + block + 5  # pages that are not touched do not exist
    master = torch.empty(0, dtype=torch.float32).resize_(size)
    weights = torch.empty(0, dtype=torch.bfloat16).resize_(size)
    master[2**31 :], weights[2**31 :] = 0, 0
    master[[2**31 + 1, -1]] = torch.tensor([3.0, 4.0])
    found = gpu.cast_extract(as_bits(master), as_bits(weights), False, block, 256, first=2**31 // block)
    assert found.positions.tolist() == [2**31 + 1, size - 1]
    assert weights[found.positions].tolist() == [3.0, 4.0]
