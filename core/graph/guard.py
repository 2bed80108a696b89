"""A scheduler that stops believing predictions when they fail: look-ahead, then the greedy rule, then the frameworks'
own order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from slipstream.core.graph.compiled.model import Actions, Kind, as_actions
from slipstream.core.graph.schedulers import GREEDY_RULE, LookAhead, Scheduler
from slipstream.core.graph.view import View

SURPRISE = 0.3
"""Relative error of a predicted stage end that counts as a surprise."""


@dataclass
class Guarded:
    """Steps down when `most` of the last `window` stage ends were surprises: once to the greedy rule, and once more,
    when what runs is slower than the best static plan, to each pipeline on its own after another."""

    scheduler: Scheduler = field(default_factory=LookAhead)
    window: int = 5
    most: int = 3
    level: int = 0
    """0 the scheduler, 1 the greedy rule, 2 the frameworks' own order."""
    _surprises: deque[bool] = field(default_factory=deque, init=False)

    def stage_ended(self, predicted: float, found: float) -> bool:
        """Learn how long a stage took, in seconds, and what was predicted; returns whether to plan again now."""
        surprise = abs(predicted - found) > SURPRISE * max(predicted, 1e-9)
        self._surprises.append(surprise)
        while len(self._surprises) > self.window:
            self._surprises.popleft()
        if self.level == 0 and sum(self._surprises) >= self.most:
            self.level = 1
        return surprise

    def throughput(self, found: float, static: float) -> None:
        """Learn how fast the last two steps of every pipeline were, and how fast the best static plan is predicted to
        be (steps a second, or any other unit)."""
        if found < 0.97 * static:
            self.level = 2

    def decide(self, view: View) -> Actions:
        """Return what the present level does."""
        if self.level == 0:
            return self.scheduler.decide(view)
        return GREEDY_RULE.decide(view) if self.level == 1 else own_order(view)


def own_order(view: View) -> Actions:
    """Return the frameworks' order: one pipeline after another, each stage on all of its workers, nothing beside it."""
    state = view.state
    if state.on.any() or state.gang_on.any():
        return as_actions([])
    # a pipeline that has begun a step goes on with it; otherwise whoever has trained least
    unfinished = np.flatnonzero(state.finished < 0)
    if unfinished.size == 0:
        return as_actions([])
    begun = [p for p in unfinished if state.rolling[p] or state.rolled[p] > state.trained[p]]
    p = begun[0] if begun else min(unfinished, key=lambda each: state.trained[each])
    kind = Kind.START_GANG if state.rolled[p] > state.trained[p] else Kind.START
    return as_actions([(kind, p, 0)])
