"""Synthetic updates with the statistics of warm RL training, no training needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

STEPS = {0.0067: 0.55e-6, 0.012: 1e-6, 0.03: 3e-6, 0.08: 10e-6}
"""Learning rate that changes that share of the bf16 elements."""


def bf16(master: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of float32 values rounded to bf16, ties to even (no NaN)."""
    bits = master.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def warm_update(n: int, rate: float, seed: int = 0) -> tuple[NDArray[np.uint16], NDArray[np.int64], NDArray[Any]]:
    """Old bf16 bits of float32 masters N(0, 0.02), and positions and values changed by N(0, 1) * 0.3 * rate."""
    rng = np.random.default_rng(seed)
    master = rng.standard_normal(n, np.float32) * np.float32(0.02)
    old = bf16(master)
    master += rng.standard_normal(n, np.float32) * np.float32(0.3 * rate)
    new = bf16(master)
    positions = np.flatnonzero(old != new)
    return old, positions, new[positions]
