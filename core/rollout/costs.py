"""What an engine iteration costs, as constants that are fitted online to what engines report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream.core.rollout.requests import LoadReport


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of one iteration: step + request x decoding + context x their context tokens + prefill.

    The defaults are the offline cost model that vllm-router 0.1.17 ships for its program scheduling.
    """

    step: float = 10.6e-3
    request: float = 0.42e-3
    """Per decoding request."""

    context: float = 0.142e-6
    """Per context token of a decoding request."""

    prefill: float = 0.057e-3
    """Per prefilled token."""

    prefill_quadratic: float = 4.4e-9
    """Per y^2 - x^2 of a chunk that extends a context from x to y tokens."""

    def prefill_seconds(self, uncached: float, total: float) -> float:
        """Return what prefilling the last `uncached` of `total` tokens adds."""
        start = total - uncached
        return self.prefill * uncached + self.prefill_quadratic * (total * total - start * start)


SMALL_MODEL = StepCosts(step=6e-3, request=0.06e-3, context=0.03e-6, prefill=0.02e-3, prefill_quadratic=0.4e-9)
"""Constants of the size of an 8B model's; a guess, used to see how far results depend on the constants."""


MOST = 20.0
"""A report whose steps took longer than this many times the expected (the machine was away) counts as this."""


class CostFit:
    """Least squares over load reports, from prior constants that may be off by their own size.

    Keeps the normal equations, so that what was reported long ago fades and a direction that reports do not excite (no
    prefill so far, say) keeps its prior. Constants are never negative.

    :param noise: relative deviation of a step's time from the model.
    :param forgetting: weight of what is known already, at each report.
    """

    def __init__(self, prior: StepCosts | None = None, *, noise: float = 0.05, forgetting: float = 0.995) -> None:
        self.costs = prior or StepCosts()
        self.reports = 0
        # In units of the prior, so that all constants have one size.
        self._scale = np.maximum([getattr(self.costs, name) for name in _NAMES], 1e-12)
        self._information = np.zeros((len(_NAMES), len(_NAMES)))
        self._moments = np.zeros(len(_NAMES))
        self._noise, self._forgetting = noise, forgetting

    def add(self, load: LoadReport) -> None:
        """Take a report; those without steps or time are ignored."""
        if load.steps <= 0 or not load.seconds > 0:
            return
        totals = (load.steps, load.decode_tokens, load.context_tokens, load.prefill_tokens, load.prefill_quadratic)
        features = self._scale * np.array(totals, float) / load.steps
        # In units of the expected time, not of the observed: that would favour whatever happened to be fast.
        expected = max(float(features @ self._solve()), 1e-9)
        features /= expected
        target = min(load.seconds / load.steps / expected, MOST)
        weight = min(load.steps, 100) / self._noise**2
        self._information = self._forgetting * self._information + weight * np.outer(features, features)
        self._moments = self._forgetting * self._moments + weight * target * features
        self.costs = StepCosts(*map(float, self._solve() * self._scale))
        self.reports += 1

    def _solve(self) -> npt.NDArray[np.float64]:
        """The constants in units of the prior; those that would be negative are 0 and the others fitted again."""
        information = self._information + np.eye(len(_NAMES))
        moments = self._moments + 1.0
        used = np.ones(len(_NAMES), bool)
        while True:
            found = np.zeros(len(_NAMES))
            found[used] = np.linalg.solve(information[np.ix_(used, used)], moments[used])
            if (found >= 0).all():
                return found
            used &= found >= 0


_NAMES = ("step", "request", "context", "prefill", "prefill_quadratic")
