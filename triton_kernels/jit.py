"""numba's compiler with this package's settings. Import it from `cpu` modules only: it pulls in numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def jit(fn: F) -> F:
    """Compile `fn` on its first call, without the GIL, and cache the machine code where a folder is writable.

    numba checks a cached kernel against the source file of that kernel only. After changing a function that another
    file's kernel calls, touch that file too.
    """
    options = {"nogil": True, "error_model": "numpy", "boundscheck": False}
    try:
        compiled: F = numba.njit(cache=True, **options)(fn)
    except RuntimeError:  # neither __pycache__ nor the user's cache folder is writable
        compiled = numba.njit(**options)(fn)
    return compiled
