"""Triton's compiler with this package's settings. Import it from `gpu` modules only: it pulls in triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton


def kernel(*runtime: str) -> Callable[[Callable[..., Any]], Any]:
    """Make a Triton kernel that is not compiled anew for special values of the integer arguments named `runtime`."""

    def wrap(fn: Callable[..., Any]) -> Any:
        return triton.jit(fn, do_not_specialize=list(runtime))

    return wrap
