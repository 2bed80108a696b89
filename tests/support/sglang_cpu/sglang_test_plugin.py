"""Means to break weight sync inside a real SGLang scheduler: methods that `Engine.collective_rpc` reaches.

Found by SGLang like any plugin, through the distribution beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_repairs: list[Callable[[], None]] = []


def register() -> None:
    """Give the scheduler its test methods."""
    from sglang.srt.managers.scheduler import Scheduler

    Scheduler.slipstream_test_break_writes = break_writes
    Scheduler.slipstream_test_lose = lose


def break_writes(self: Any, broken: bool) -> None:
    """Make the next update fail half-way on the last rank."""
    from breaking import break_third_scatter
    from sglang.srt.runtime_context import get_parallel

    from slipstream.core.weights import transaction

    while _repairs:
        _repairs.pop()()
    if broken and get_parallel().tp_rank == get_parallel().tp_size - 1:
        _repairs.append(break_third_scatter(transaction))


def lose(self: Any) -> None:
    """What discards the weights behind the sync's back."""
    from slipstream.plugins.sglang import worker

    for each in worker.workers.values():
        each.lose("the test says so")
