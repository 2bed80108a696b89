"""The demo's reward, named by ``reward.custom_reward_function.path=pkg://slipstream.plugins.verl.demo.reward``."""

from __future__ import annotations

from typing import Any

from slipstream.plugins.verl.demo.task import score

__all__ = ["compute_score"]


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> float:
    """Return the reward of one response, with the signature verl calls."""
    return float(score(solution_str, ground_truth))
