"""The trainer's copy of what the engines hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream.core.weights.snapshot import Snapshot
from slipstream.triton_kernels import as_unsigned_numpy, cast_extract

KINDS = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_advances_to_what_a_cast_gives_and_goes_back(kind):
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(40, 30, generator=generator)
    after = before + 0.01 * torch.randn(40, 30, generator=generator)
    snapshot = Snapshot(keep_on_device=False)
    snapshot.store(0, before.to(kind))
    old = as_unsigned_numpy(snapshot.bits(0)).copy()
    for _ in range(2):
        changes = snapshot.advance(0, after.t().contiguous().t(), kind)
        new = as_unsigned_numpy(snapshot.bits(0))
        assert torch.equal(snapshot.bits(0).view(kind).view(40, 30).float(), after.to(kind).float())
        assert np.array_equal(changes.positions, np.flatnonzero(old != new))
        assert np.array_equal(changes.old, old[changes.positions])
        assert np.array_equal(changes.new, new[changes.positions])
        snapshot.roll_back()
        assert np.array_equal(as_unsigned_numpy(snapshot.bits(0)), old)
    snapshot.advance(0, after, kind)
    snapshot.commit()
    assert snapshot.advance(0, after, kind).positions.size == 0
    snapshot.roll_back()
    assert np.array_equal(as_unsigned_numpy(snapshot.bits(0)), new)


@pytest.mark.parametrize(
    ("trainer", "kind", "fused"),
    [
        (torch.float32, torch.bfloat16, True),
        (torch.float32, torch.float16, True),
        (torch.float32, torch.float32, False),
        (torch.bfloat16, torch.bfloat16, False),
        (torch.bfloat16, torch.float16, False),
    ],
)
def test_fp32_masters_are_cast_and_compared_in_one_pass(monkeypatch, trainer, kind, fused):
    calls = []
    monkeypatch.setattr(
        "slipstream.core.weights.snapshot.cast_extract", lambda *args: calls.append(args) or cast_extract(*args)
    )
    snapshot = Snapshot(keep_on_device=False)
    snapshot.store(0, torch.ones(100, dtype=kind))
    assert snapshot.advance(0, torch.full((100,), 2.0, dtype=trainer), kind).positions.size == 100
    assert len(calls) == fused
