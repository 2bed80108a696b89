"""What an engine iteration costs, as constants that are fitted online to what engines report."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """Recursive least squares over load reports, starting from prior constants and forgetting slowly.

    A direction that reports do not excite (no prefill ever seen alone, say) keeps its prior. Constants are never
    negative.
    """

    _SCALES = np.array([1.0, 32.0, 32.0 * 4096, 2048.0, 2048.0**2])
    """Typical features of one iteration, so that one prior strength suits all constants."""

    def __init__(self, prior: StepCosts | None = None, *, prior_steps: float = 20.0, forgetting: float = 0.995) -> None:
        prior = prior or StepCosts()
        values = np.array([prior.step, prior.request, prior.context, prior.prefill, prior.prefill_quadratic])
        self._theta = values * self._SCALES
        self._covariance = np.eye(5) / prior_steps
        self._forgetting = forgetting
        self.costs = prior
        self.reports = 0

    def add(self, load: LoadReport) -> None:
        """Take a report; those without steps or time are ignored."""
        if load.steps <= 0 or not load.seconds > 0:
            return
        features = np.array(
            [load.steps, load.decode_tokens, load.context_tokens, load.prefill_tokens, load.prefill_quadratic], float
        )
        features /= load.steps * self._SCALES
        seen = self._covariance @ features
        gain = seen / (self._forgetting + features @ seen)
        self._theta = self._theta + gain * (load.seconds / load.steps - features @ self._theta)
        self._covariance = (self._covariance - np.outer(gain, seen)) / self._forgetting
        limit = 1e3 / max(float(np.trace(self._covariance)), 1e3)
        self._covariance *= limit  # forgetting must not blow up directions that are never excited
        constants = np.maximum(self._theta / self._SCALES, 0.0)
        self.costs = replace(self.costs, **dict(zip(_NAMES, map(float, constants), strict=True)))
        self.reports += 1


_NAMES = ("step", "request", "context", "prefill", "prefill_quadratic")
