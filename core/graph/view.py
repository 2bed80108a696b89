"""A planner's view: the present as it believes it, and the futures it can try from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slipstream.core.graph.compiled.advance import advance
from slipstream.core.graph.compiled.apply import apply_all
from slipstream.core.graph.compiled.belief import believe
from slipstream.core.graph.compiled.lookahead import LONGEST_SET, candidates, estimate, look_ahead, play_out, try_set
from slipstream.core.graph.compiled.model import (
    Actions,
    Curves,
    Flag,
    Floats,
    Kind,
    State,
    World,
    clone_state,
    copy_state,
    new_state,
)
from slipstream.core.graph.compiled.policies import decide, path_left
from slipstream.core.graph.workload import Workload
from slipstream.core.graph.world import ALL_ACTIONS, build_world, fill_steps

MOST_WITH_PAIRS = 128
"""Workers times pipelines up to which ordered pairs of actions are tried."""


@dataclass
class Prediction:
    """What is believed of lengths."""

    expected: list[list[Floats]]
    """By pipeline and step, float64[n] tokens of each request. Steps predicted alike share one array."""
    previous: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """float64[P, n] ascending: where only the last step's lengths are known, these; otherwise no columns."""


@dataclass
class Candidate:
    """A set of actions and where it leads."""

    actions: Actions
    score: float
    """Estimated makespan, seconds."""


class View:
    """The present and its futures, on workers that stand for `group` real ones each."""

    def __init__(
        self,
        workload: Workload,
        prediction: Prediction,
        *,
        group: int = 1,
        allowed: frozenset[Flag] = ALL_ACTIONS,
        rates: Floats | None = None,
        horizon_steps: float = 4.0,
        preferred: int = 0,
    ) -> None:
        """Prepare the futures of a workload; `observe` says where it is.

        Args:
            group: must divide the workers.
            rates: as the planner believes them.
            preferred: the layout that the greedy rule deals fresh rollouts to.
            horizon_steps: how far play-outs go, in steps of the slowest pipeline.
        """
        self.workload = workload
        self.group = group
        self.world, self.curves = build_world(
            workload, prediction.expected, prediction.expected, group=group, allowed=allowed, rates=rates
        )
        self.world.preferred[:] = preferred
        self._prediction = prediction
        self._base = self.curves.used.copy()
        count, workers = len(workload.pipelines), workload.workers // group
        self.state = new_state(count, workers)
        self._scratch = new_state(count, workers)
        self._occupied = np.zeros((workers, 2), np.int64)
        most = 3 + 1 + 16 * count
        self.pairs = workers * count <= MOST_WITH_PAIRS
        self._sets = np.zeros((most + (100 * count if self.pairs else 0), LONGEST_SET, 3), np.int64)
        self._scores = np.zeros(self._sets.shape[0])
        self._ranks = np.random.default_rng(0).random(max(each[0].size for each in prediction.expected))
        self.horizon = horizon_steps * max(
            self.world.rest[p, 0] / self.world.steps[p] for p in range(count)
        )

    def observe(self, curves: Curves, state: State, prediction: Prediction) -> None:
        """Take over where the real workers are.

        Args:
            curves: of the real workers; of unfinished requests only what is generated and expected is used.
            state: of the real workers.
        """
        if prediction is not self._prediction:
            fill_steps(self.world, self.curves, self.workload, prediction.expected, prediction.expected, self.group)
            self._base = self.curves.used.copy()
            self._prediction = prediction
        self.curves.used[:] = self._base
        previous = prediction.previous
        if previous.shape[1] == 0:
            previous = np.zeros((len(self.workload.pipelines), 0))
        believe(self.world, curves, state, self.curves, self.state, previous, self._ranks)

    def rule(self, policy: int) -> Actions:
        """Return what a rule of `policies` does now."""
        out = np.full((LONGEST_SET, 3), -1, np.int64)
        copy_state(self._scratch, self.state)
        mark = self.curves.used.copy()
        count = decide(self.world, self.curves, self._scratch, self._occupied, policy, out)
        self.curves.used[:] = mark
        return self._real(out[:count])

    def futures(self, state: State | None = None) -> list[Candidate]:
        """Return every candidate with the score of its play-out, greedy's own first."""
        start = self.state if state is None else state
        count = look_ahead(
            self.world, self.curves, start, self._scratch, self.horizon, self.pairs, self._sets, self._scores
        )
        return [Candidate(_trim(self._sets[i]), float(self._scores[i])) for i in range(count) if i == 0 or np.isfinite(self._scores[i])]

    def bounded(self, state: State, bound_speed: float) -> list[Candidate]:
        """Return every candidate scored by a lower bound instead: max of longest path, work / (speed * workers)."""
        count = candidates(
            self.world, self.curves, state, self._scratch, self._occupied, self.pairs, self._sets
        )
        found = []
        for actions in [_trim(self._sets[i]) for i in range(count)]:
            mark = self.curves.used.copy()
            after = self.after(state, actions)
            if after is not None:
                found.append(Candidate(actions, self.bound(after, bound_speed)))
            self.curves.used[:] = mark
        return found

    def bound(self, state: State, speed: float) -> float:
        """Return the time at which everything could end at best."""
        paths = work = 0.0
        for p in range(len(self.workload.pipelines)):
            if state.finished[p] < 0:
                path = path_left(self.world, self.curves, state, p)
                paths, work = max(paths, path), work + path
        return float(state.clock[0]) + max(paths, work / speed)

    def after(self, state: State, actions: Actions) -> State | None:
        """Return the state at the next decision after some actions, or None when they are not possible."""
        copy = clone_state(state)
        padded = np.full((LONGEST_SET, 3), -1, np.int64)
        padded[: len(actions)] = actions
        return copy if try_set(self.world, self.curves, copy, self._occupied, padded) else None

    def mark(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the arena's level, to go back to."""
        return self.curves.used.copy()

    def reset(self, mark: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Drop every curve since `mark`."""
        self.curves.used[:] = mark

    def _real(self, actions: Actions) -> Actions:
        """Return actions for the real workers: numbers of workers times what each stands for."""
        real = actions.copy()
        real[real[:, 0] == Kind.REDISTRIBUTE, 2] *= self.group
        return real

    def real(self, actions: Actions) -> Actions:
        """Return the actions of a candidate for the real workers."""
        return self._real(actions)


def _trim(actions: Actions) -> Actions:
    ends = np.flatnonzero(actions[:, 0] < 0)
    return actions[: ends[0] if ends.size else None].copy()
