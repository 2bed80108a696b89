"""The graph scheduler and the rules it is compared with, as an ordinary plugin."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from slipstream.core.hooks import Scheduler, hookimpl


def _look_ahead(**options: Any) -> Any:
    from slipstream.core.graph.schedulers import LookAhead

    return LookAhead(**options)


def _rule(name: str) -> Any:
    from slipstream.core.graph import schedulers

    return getattr(schedulers, name)


@hookimpl
def slipstream_schedulers() -> Iterable[Scheduler]:
    """``graph`` looks ahead; the others decide by one rule. numba is imported when one of them is built."""
    yield Scheduler(name="graph", factory=_look_ahead)
    yield Scheduler(name="greedy", factory=partial(_rule, "GREEDY_RULE"))
    yield Scheduler(name="round_robin", factory=partial(_rule, "ROUND_ROBIN_RULE"))
    yield Scheduler(name="threshold_merge", factory=partial(_rule, "THRESHOLD_RULE"))
