"""Schedulers: each looks at a view and says what to do now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from slipstream.core.graph.compiled.model import Actions, State
from slipstream.core.graph.compiled.policies import GREEDY, ROUND_ROBIN, THRESHOLD
from slipstream.core.graph.view import Candidate, View

SMALL_GRAPH = 12
"""Sub-stages up to which the search goes deeper."""


class Scheduler(Protocol):
    """Decides what runs where."""

    def decide(self, view: View) -> Actions:
        """Return the actions to take now, in order; none to let time pass."""


@dataclass(frozen=True)
class Rule:
    """A rule that decides at once."""

    policy: int

    def decide(self, view: View) -> Actions:
        """Return what the rule does."""
        return view.rule(self.policy)


GREEDY_RULE = Rule(GREEDY)
ROUND_ROBIN_RULE = Rule(ROUND_ROBIN)
THRESHOLD_RULE = Rule(THRESHOLD)


@dataclass(frozen=True)
class LookAhead:
    """Takes the first step whose greedy play-out ends soonest, when it beats greedy's own by the margin."""

    margin: float = 0.02
    """Share of the seconds looked ahead."""
    width: int = 1
    depth: int = 1
    """Decisions that are searched before the play-out; more than one only pays on small graphs."""

    def decide(self, view: View) -> Actions:
        """Return the best candidate's actions."""
        futures = view.futures()
        greedy = futures[0]
        best = min(futures, key=lambda each: each.score)
        if self.depth > 1:
            best = min(best, self._deeper(view, futures), key=lambda each: each.score)
        ahead = min(greedy.score - float(view.state.clock[0]), view.horizon)
        chosen = best if best.score < greedy.score - self.margin * ahead or not np.isfinite(greedy.score) else greedy
        return view.real(chosen.actions)

    def _deeper(self, view: View, futures: list[Candidate]) -> Candidate:
        """Follow the `width` best candidates to further decisions; returns the best leaf with its first actions."""
        mark = view.mark()
        best = futures[0]
        front: list[tuple[Candidate, Candidate, State]] = [(each, each, view.state) for each in futures]
        for _ in range(self.depth - 1):
            front = sorted(front, key=lambda node: node[1].score)[: self.width]
            following: list[tuple[Candidate, Candidate, State]] = []
            for first, last, state in front:
                after = view.after(state, last.actions)
                if after is not None and (after.finished < 0).any():
                    following += [(first, each, after) for each in view.futures(after)]
            if not following:
                break
            leaf = min(following, key=lambda node: node[1].score)
            if leaf[1].score < best.score:
                best = Candidate(leaf[0].actions, leaf[1].score)
            front = following
        view.reset(mark)
        return best


@dataclass(frozen=True)
class Beam:
    """Beam search scored by lower bounds, as JigsawRL's look-ahead can be reconstructed; kept to compare with."""

    width: int = 4
    depth: int = 4
    speed: float = 1.3
    """How much faster than one after another the rest is taken to go."""

    def decide(self, view: View) -> Actions:
        """Return the first actions of the best leaf."""
        mark = view.mark()
        front = [(each, each, view.state) for each in view.bounded(view.state, self.speed)]
        best = min(front, key=lambda node: node[1].score)
        for _ in range(self.depth - 1):
            following = []
            for first, last, state in sorted(front, key=lambda node: node[1].score)[: self.width]:
                after = view.after(state, last.actions)
                if after is not None and (after.finished < 0).any():
                    following += [(first, each, after) for each in view.bounded(after, self.speed)]
            if not following:
                break
            front = following
            best = min(front, key=lambda node: node[1].score)
        view.reset(mark)
        return view.real(best[0].actions)
