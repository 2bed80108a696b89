"""Interleaved timing, and the limit that speeds are divided by: reading two streams in the same process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.triton_kernels.jit import jit


@jit
def read_two(a: NDArray[Any], b: NDArray[Any]) -> int:
    """Read two uint64 streams of one length."""
    total = np.uint64(0)
    for i in range(a.size):
        total += a[i] ^ b[i]
    return total  # type: ignore[return-value]


def interleaved(rounds: int, *tasks: Callable[[], Any]) -> list[float]:
    """Least CPU seconds of each task, run in turn; the first turn does not count. One thread works."""
    best = [float("inf")] * len(tasks)
    for task in tasks:
        task()
    for _ in range(rounds):
        for i, task in enumerate(tasks):
            start = time.thread_time()
            task()
            best[i] = min(best[i], time.thread_time() - start)
    return best
