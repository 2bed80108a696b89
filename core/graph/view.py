"""A planner's view: the present as it believes it, and the futures it can try from there."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from slipstream.core.graph.compiled.belief import believe
from slipstream.core.graph.compiled.lookahead import LONGEST_SET, candidates, look_ahead, try_set
from slipstream.core.graph.compiled.model import (
    Actions,
    Curves,
    Flag,
    Floats,
    Ints,
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
    """The present as a planner believes it, and its futures."""

    def __init__(self, world: World, curves: Curves, *, horizon: float, group: int = 1) -> None:
        """Prepare the futures of a world; `state` is where it is.

        Args:
            horizon: seconds that play-outs go on at most.
            group: real workers that each worker of the world stands for.
        """
        self.world, self.curves, self.horizon, self.group = world, curves, horizon, group
        count, workers = world.steps.size, int(world.layouts[0])
        self.state = new_state(count, workers)
        self._scratch = new_state(count, workers)
        self._occupied = np.zeros((workers, 2), np.int64)
        self.pairs = workers * count <= MOST_WITH_PAIRS
        most = 4 + 16 * count
        self._sets = np.zeros((most + (100 * count if self.pairs else 0), LONGEST_SET, 3), np.int64)
        self._scores = np.zeros(self._sets.shape[0])

    def rule(self, policy: int) -> Actions:
        """Return what a rule of `policies` does now."""
        out = np.full((LONGEST_SET, 3), -1, np.int64)
        copy_state(self._scratch, self.state)
        mark = self.curves.used.copy()
        count = decide(self.world, self.curves, self._scratch, self._occupied, policy, out)
        self.curves.used[:] = mark
        return self.real(out[:count])

    def futures(self, state: State | None = None) -> list[Candidate]:
        """Return every candidate with the score of its play-out, greedy's own first."""
        start = self.state if state is None else state
        count = look_ahead(
            self.world, self.curves, start, self._scratch, self.horizon, self.pairs, self._sets, self._scores
        )
        return [
            Candidate(_trim(self._sets[i]), float(self._scores[i]))
            for i in range(count)
            if i == 0 or np.isfinite(self._scores[i])
        ]

    def bounded(self, state: State, bound_speed: float) -> list[Candidate]:
        """Return every candidate scored by a lower bound instead: max of longest path, work / (speed * workers)."""
        count = candidates(self.world, self.curves, state, self._scratch, self._occupied, self.pairs, self._sets)
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
        for p in range(state.finished.size):
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

    def mark(self) -> Ints:
        """Return the arena's level, to go back to."""
        return self.curves.used.copy()

    def reset(self, mark: Ints) -> None:
        """Drop every curve since `mark`."""
        self.curves.used[:] = mark

    def real(self, actions: Actions) -> Actions:
        """Return actions for the real workers: numbers of workers times what each stands for."""
        real = actions.copy()
        real[real[:, 0] == Kind.REDISTRIBUTE, 2] *= self.group
        return real


class WorkloadView(View):
    """A view of a workload whose lengths are predicted."""

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
            group: real workers that are planned as one; must divide them.
            rates: as the planner believes them; None for the workload's own.
            horizon_steps: how far play-outs go, in steps of the slowest pipeline.
            preferred: the layout that the greedy rule deals fresh rollouts to.
        """
        world, curves = build_world(
            workload, prediction.expected, prediction.expected, group=group, allowed=allowed, rates=rates
        )
        world.preferred[:] = preferred
        longest = float((world.rest[:, 0] / world.steps).max())
        super().__init__(world, curves, horizon=horizon_steps * longest, group=group)
        self.workload = workload
        self._prediction = prediction
        self._base = curves.used.copy()
        self._ranks = np.random.default_rng(0).random(max(each[0].size for each in prediction.expected))

    def observe(self, curves: Curves, state: State, prediction: Prediction) -> None:
        """Take over where the real workers are.

        Args:
            curves: of the real workers; of unfinished requests only what is generated and expected is used.
            state: of the real workers.
            prediction: lengths as they are believed now.
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


def _trim(actions: Actions) -> Actions:
    ends = np.flatnonzero(actions[:, 0] < 0)
    return actions[: ends[0] if ends.size else None].copy()
