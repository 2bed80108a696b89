"""Means to make an update fail half-way inside a real engine worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

_SCATTERS = ("scatter_changes", "scatter_packed")
_PARTS = "write_parts"


def before_scatters(transaction: ModuleType, act: Callable[[], None]) -> Callable[[], None]:
    """Call `act` whenever `transaction` is about to write changes of one tensor, and return what ends that.

    Not where the warm-up writes, to tensors of its own. What is written in one call otherwise is written in as many.
    """
    real = {name: getattr(transaction, name) for name in (*_SCATTERS, _PARTS)}

    def acting(scatter: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            if threading.current_thread().name != "slipstream-warm-up":
                act()
            return scatter(*args)

        return wrapped

    for name in _SCATTERS:
        setattr(transaction, name, acting(real[name]))
    one = acting(real[_PARTS])
    setattr(transaction, _PARTS, lambda applied, begin, end: sum(one(applied, p, p + 1) for p in range(begin, end)))

    def end() -> None:
        for name, scatter in real.items():
            setattr(transaction, name, scatter)

    return end


def break_third_scatter(transaction: ModuleType) -> Callable[[], None]:
    """`before_scatters`: the third one fails, so some tensors are written by then."""
    count = 0

    def fail() -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise RuntimeError("broken on purpose")

    return before_scatters(transaction, fail)
