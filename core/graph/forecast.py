"""What a scheduler is told about lengths: known to some error, or only remembered from the steps before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from slipstream.core.graph.compiled.model import Floats, State
from slipstream.core.graph.view import Prediction
from slipstream.core.graph.workload import Workload


class Forecaster(Protocol):
    """Predicts lengths as a run goes on."""

    def start(self, workload: Workload) -> Prediction:
        """Return what is known at launch."""

    def now(self, state: State) -> Prediction:
        """Return what is known now; the same object as before when nothing was learned."""


@dataclass(frozen=True)
class Given:
    """A prediction that stays what it is."""

    prediction: Prediction

    def start(self, workload: Workload) -> Prediction:
        """Return it."""
        return self.prediction

    def now(self, state: State) -> Prediction:
        """Return it."""
        return self.prediction


@dataclass
class KnownLengths:
    """Every request's length is known, times a lognormal error: half of it common to the step, half to the prompt
    group, 0.7 its own (each times `noise`)."""

    noise: float = 0.0
    seed: int = 0
    _prediction: Prediction = field(default_factory=lambda: Prediction([]), init=False)

    def start(self, workload: Workload) -> Prediction:
        """Return the lengths with their errors."""
        lengths = [pipeline.step_lengths() for pipeline in workload.pipelines]
        self._prediction = Prediction(with_errors(workload, lengths, self.noise, self.seed))
        return self._prediction

    def now(self, state: State) -> Prediction:
        """Return the same."""
        return self._prediction


@dataclass
class Remembered:
    """Nothing is known of single requests; a step is taken to be like the last one that has ended."""

    before: Sequence[Floats]
    """By pipeline, float64[n] tokens of each request of the step before the first."""
    _lengths: list[list[Floats]] = field(default_factory=list, init=False)
    _rolled: tuple[int, ...] = field(default=(), init=False)
    _prediction: Prediction = field(default_factory=lambda: Prediction([]), init=False)

    def start(self, workload: Workload) -> Prediction:
        """Return the step before the first, for every step."""
        self._lengths = [pipeline.step_lengths() for pipeline in workload.pipelines]
        self._learn(tuple(0 for _ in self._lengths))
        return self._prediction

    def now(self, state: State) -> Prediction:
        """Return what the ended rollouts say."""
        rolled = tuple(int(each) for each in state.rolled)
        if rolled != self._rolled:
            self._learn(rolled)
        return self._prediction

    def _learn(self, rolled: tuple[int, ...]) -> None:
        self._rolled = rolled
        last = [
            steps[ended - 1] if ended else before
            for steps, ended, before in zip(self._lengths, rolled, self.before, strict=True)
        ]
        most = max(lengths.size for lengths in last)
        self._prediction = Prediction(
            [[lengths] * len(steps) for lengths, steps in zip(last, self._lengths, strict=True)],
            np.array([np.sort(np.resize(lengths, most)) for lengths in last]),
        )


def with_errors(workload: Workload, lengths: list[list[Floats]], error: float, seed: int) -> list[list[Floats]]:
    """Return lengths times lognormal errors: half of `error` common to a step, half to a prompt group, and
    0.7 a request's own.

    Args:
        lengths: by pipeline and step, float64[n].
    """
    random = np.random.default_rng(seed)
    found = []
    for pipeline, steps in zip(workload.pipelines, lengths, strict=True):
        drawn = []
        for step in steps:
            groups = random.normal(size=-(-step.size // pipeline.group)).repeat(pipeline.group)[: step.size]
            deviation = 0.5 * random.normal() + 0.5 * groups + 0.7 * random.normal(size=step.size)
            drawn.append(step * np.exp(error * deviation))
        found.append(drawn)
    return found
