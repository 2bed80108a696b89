"""Weights and their update on a device, with the statistics of warm RL training (see `sync/synthetic_updates.py`)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

RATES = {0.001: 0.06e-6, 0.006: 0.46e-6, 0.01: 0.82e-6, 0.05: 5.5e-6}
"""Learning rate that changes about that share of the bf16 elements."""


class Update(NamedTuple):
    """One step of bf16 weights."""

    before: Tensor
    """fp32[n], the masters N(0, 0.02) before the step."""
    after: Tensor
    """fp32[n], moved by N(0, 1) * 0.3 * rate."""
    old: Tensor
    """int16[n], the bits of `before` in bf16."""
    new: Tensor
    """int16[n], of `after`."""
    positions: Tensor
    """int64[k], where they differ."""
    values: Tensor
    """int16[k], the elements of `new` there."""

    @property
    def density(self) -> float:
        """Share that changed."""
        return self.positions.numel() / self.old.numel()


def draw(n: int, density: float, device: str) -> Update:
    """An update of n weights that changes about `density` of them."""
    generator = torch.Generator(device).manual_seed(0)
    before = torch.randn(n, device=device, generator=generator).mul_(0.02)
    after = torch.randn(n, device=device, generator=generator).mul_(0.3 * RATES[density]).add_(before)
    old, new = before.bfloat16().view(torch.int16), after.bfloat16().view(torch.int16)
    positions = (old != new).nonzero().view(-1)
    return Update(before, after, old, new, positions, new[positions])
