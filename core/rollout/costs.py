"""What an engine iteration costs, as constants that are fitted online to what engines report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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


class CostFit:
    """Recursive least squares over load reports, from prior constants that may be off by their own size.

    A direction that reports do not excite (no prefill so far, say) keeps its prior. Constants are never negative.

    :param noise: relative deviation of a step's time from the model.
    :param forgetting: weight of what is known already, at each report.
    """

    def __init__(self, prior: StepCosts | None = None, *, noise: float = 0.05, forgetting: float = 0.995) -> None:
        self.costs = prior or StepCosts()
        self.reports = 0
        self._theta = np.array([getattr(self.costs, name) for name in _NAMES])
        self._widest = np.maximum(self._theta, 1e-12) ** 2
        self._covariance = np.diag(self._widest)
        self._noise, self._forgetting = noise, forgetting

    def add(self, load: LoadReport) -> None:
        """Take a report; those without steps or time are ignored."""
        if load.steps <= 0 or not load.seconds > 0:
            return
        totals = (load.steps, load.decode_tokens, load.context_tokens, load.prefill_tokens, load.prefill_quadratic)
        features = np.array(totals, float) / load.steps
        seconds = load.seconds / load.steps
        seen = self._covariance @ features
        deviation = (self._noise * seconds) ** 2 / min(load.steps, 100)
        gain = seen / (self._forgetting * deviation + features @ seen)
        self._theta = np.maximum(self._theta + gain * (seconds - features @ self._theta), 0.0)
        covariance = (self._covariance - np.outer(gain, seen)) / self._forgetting
        # Forgetting must not blow up a direction that is never excited.
        shrink = np.sqrt(np.minimum(1.0, self._widest / np.maximum(covariance.diagonal(), 1e-300)))
        self._covariance = covariance * np.outer(shrink, shrink)
        self.costs = StepCosts(*map(float, self._theta))
        self.reports += 1


_NAMES = ("step", "request", "context", "prefill", "prefill_quadratic")
