"""How the drafter's functions are compiled: entry points by `jit`, everything that they call into their body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

from slipstream.triton_kernels.jit import jit

__all__ = ["inlined", "jit"]

F = TypeVar("F", bound=Callable[..., Any])


def inlined(fn: F) -> F:
    """Compile `fn` into its callers' bodies.

    A call that stays a call passes every array by value and counts a reference to each: more than the work itself.
    """
    compiled: F = numba.njit(nogil=True, error_model="numpy", boundscheck=False, forceinline=True)(fn)
    return compiled
