"""Triton's compiler with this package's settings. Import it from `gpu` modules only: it pulls in triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton


def kernel(*runtime: str) -> Callable[[Callable[..., Any]], Any]:
    """Make a Triton kernel that is not compiled anew for special values of the integer arguments named `runtime`."""

    def wrap(fn: Callable[..., Any]) -> Any:
        return triton.jit(fn, do_not_specialize=list(runtime))

    return wrap


def warps(threads: int) -> int:
    """How many warps so many threads are: 32 threads each on CUDA, 64 on HIP.

    The same number on both would halve what a thread of a HIP device loads at a time.
    """
    return threads // (64 if torch.version.hip else 32)
