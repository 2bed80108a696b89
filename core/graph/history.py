"""Predicts the next step of a pipeline from the steps before it: adjacent steps of a run are alike."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from slipstream.core.graph.compiled.model import Floats
from slipstream.core.graph.errors import GraphError
from slipstream.core.graph.workload import StageSeconds

_QUANTILES = 257


@dataclass(frozen=True)
class PredictedStep:
    """What the next step is taken to be."""

    lengths: Floats
    """float64[n] ascending: tokens of each request."""
    stages: StageSeconds
    error: float
    """Mean relative error of earlier predictions: of the longest request, of all tokens and of the stages' seconds."""


@dataclass
class StepHistory:
    """Recent steps of one pipeline."""

    weight: float = 0.5
    """Of the newest step, against all before it; 1 remembers only that."""
    errors_kept: int = 8
    _curve: Floats | None = field(default=None, init=False)
    _stages: Floats | None = field(default=None, init=False)
    _errors: deque[float] = field(default_factory=deque, init=False)

    def add(self, lengths: Floats, stages: StageSeconds) -> None:
        """Learn a step that has ended, and how well it was predicted.

        Args:
            lengths: float64[n], tokens of each request.

        Raises:
            GraphError: there are none, or one is not positive.
        """
        if lengths.size == 0 or not np.all(np.isfinite(lengths)) or lengths.min() <= 0:
            raise GraphError(
                f"step history: expected positive lengths, found {lengths.size} with bad values among them"
            )
        curve: Floats = np.quantile(lengths, np.linspace(0.0, 1.0, _QUANTILES)).astype(np.float64)
        seconds = np.array([stages.logprob, stages.train, stages.sync])
        if self._curve is None or self._stages is None:
            self._curve, self._stages = curve, seconds
            return
        found = np.array([curve[-1], curve.mean(), seconds.sum()])
        said = np.array([self._curve[-1], self._curve.mean(), self._stages.sum()])
        self._errors.append(float(np.mean(np.abs(said - found) / np.maximum(found, 1e-9))))
        while len(self._errors) > self.errors_kept:
            self._errors.popleft()
        self._curve = self.weight * curve + (1.0 - self.weight) * self._curve
        self._stages = self.weight * seconds + (1.0 - self.weight) * self._stages

    def predict(self, requests: int) -> PredictedStep:
        """Return the next step with so many requests.

        Raises:
            GraphError: nothing was added yet.
        """
        if self._curve is None or self._stages is None:
            raise GraphError("step history: expected at least one step; add the step that was recorded last")
        places = (np.arange(requests) + 0.5) / requests
        lengths = np.interp(places, np.linspace(0.0, 1.0, _QUANTILES), self._curve)
        lengths[-1] = self._curve[-1]  # the longest request decides when a rollout ends
        logprob, train, sync = (float(each) for each in self._stages)
        error = float(np.mean(self._errors)) if self._errors else 1.0
        return PredictedStep(lengths, StageSeconds(logprob, train, sync), error)
