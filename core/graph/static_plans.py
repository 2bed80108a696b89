"""What needs no scheduler: the frameworks' own order, and clusters split once and for all.

Closed forms on given lengths. Each is the time of a whole workload in seconds.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.core.graph.compiled.model import Floats
from slipstream.core.graph.workload import Pipeline, Workload


@dataclass(frozen=True)
class StaticPlan:
    """A division of the cluster that stays."""

    name: str
    """serial, even split, uneven split or pool split."""
    seconds: float
    """Until the last pipeline ends."""
    ends: tuple[float, ...]
    """When each pipeline ends."""
    shares: tuple[int, ...]
    """Workers of each pipeline; for a pool split, of the rollout and the train pool."""


def static_plans(workload: Workload, lengths: Sequence[Sequence[Floats]]) -> dict[str, StaticPlan]:
    """Return every static plan by name.

    Args:
        lengths: by pipeline and step, float64[n] tokens of each request.
    """
    count = len(workload.pipelines)
    every = [
        _Alone(pipeline, steps, workload.workers) for pipeline, steps in zip(workload.pipelines, lengths, strict=True)
    ]
    whole = [alone.seconds(workload.workers) for alone in every]
    ends = tuple(itertools.accumulate(whole))
    plans = {"serial": StaticPlan("serial", ends[-1], ends, (workload.workers,) * count)}
    if count > 1 and workload.workers >= count:
        for name, shares in (
            ("even split", (workload.workers // count,) * count),
            ("uneven split", _balanced(every, workload.workers)),
        ):
            times = tuple(alone.seconds(share) for alone, share in zip(every, shares, strict=True))
            plans[name] = StaticPlan(name, max(times), times, shares)
        if all(pipeline.staleness == 0 for pipeline in workload.pipelines):
            plans["pool split"] = min(
                (_pools(workload, every, size) for size in range(1, workload.workers)), key=lambda plan: plan.seconds
            )
    return plans


def carry_out(workload: Workload, lengths: Sequence[Sequence[Floats]], plan: StaticPlan) -> StaticPlan:
    """Return what a plan that was made on other lengths comes to on these."""
    every = [
        _Alone(pipeline, steps, workload.workers) for pipeline, steps in zip(workload.pipelines, lengths, strict=True)
    ]
    if plan.name == "pool split":
        return _pools(workload, every, plan.shares[0])
    times = tuple(alone.seconds(share) for alone, share in zip(every, plan.shares, strict=True))
    ends = tuple(itertools.accumulate(times)) if plan.name == "serial" else times
    return StaticPlan(plan.name, max(ends), ends, plan.shares)


def exclusive_seconds(workload: Workload, lengths: Sequence[Sequence[Floats]]) -> list[float]:
    """Return each pipeline's time with the whole cluster, in the framework's order."""
    return [
        _Alone(pipeline, steps, workload.workers).seconds(workload.workers)
        for pipeline, steps in zip(workload.pipelines, lengths, strict=True)
    ]


def rollout_seconds(pipeline: Pipeline, lengths: Floats, workers: int) -> float:
    """Return the time of a rollout dealt round robin: the slowest worker's prefill and decode."""
    padded = np.zeros((-(-lengths.size // workers), workers))
    padded.ravel()[: lengths.size] = lengths
    requests = (padded > 0).sum(axis=0)
    cost = pipeline.decode
    times = (
        requests * (pipeline.prompt_tokens * cost.prefill)
        + cost.iteration * padded.max(axis=0)
        + cost.per_request * padded.sum(axis=0)
    )
    return float(times.max())


class _Alone:
    """One pipeline with some workers to itself."""

    def __init__(self, pipeline: Pipeline, lengths: Sequence[Floats], cluster: int) -> None:
        self.pipeline = pipeline
        self.lengths = lengths
        self.cluster = cluster
        self.rollouts: Callable[[int], tuple[float, ...]] = functools.cache(self._rollouts)
        self.seconds: Callable[[int], float] = functools.cache(self._seconds)

    def _rollouts(self, workers: int) -> tuple[float, ...]:
        return tuple(rollout_seconds(self.pipeline, lengths, workers) for lengths in self.lengths)

    def gang(self, workers: int) -> float:
        """Seconds of the stages behind a rollout on some of the workers: compute takes longer on fewer, a sync does
        not, as every worker receives the same bytes."""
        stages = self.pipeline.stages
        return (stages.logprob + stages.train) * self.cluster / workers + stages.sync

    def _seconds(self, workers: int) -> float:
        if self.pipeline.staleness == 0:
            return sum(self.rollouts(workers)) + len(self.lengths) * self.gang(workers)
        if workers == 1:
            return self._seconds_async(1, 1) * 2  # taking turns
        return min(self._seconds_async(roll, workers - roll) for roll in range(1, workers))

    def _seconds_async(self, rolling: int, training: int) -> float:
        """Rollout and train workers apart, one step of staleness."""
        synced = [0.0]
        rolled = 0.0
        for step, seconds in enumerate(self.rollouts(rolling)):
            rolled = max(rolled, synced[max(0, step - 1)]) + seconds
            synced.append(max(rolled, synced[-1]) + self.gang(training))
        return synced[-1]


def _balanced(every: Sequence[_Alone], workers: int) -> tuple[int, ...]:
    """Give one more worker to whoever ends last, until there is none left: the best split, as times fall with
    workers."""
    shares = [1] * len(every)
    for _ in range(workers - len(every)):
        last = max(range(len(every)), key=lambda p: every[p].seconds(shares[p]))
        shares[last] += 1
    return tuple(shares)


def _pools(workload: Workload, every: Sequence[_Alone], rolling: int) -> StaticPlan:
    """One rollout pool and one train pool, pipelines take turns in both (RollMux, arXiv 2512.11306)."""
    training = workload.workers - rolling
    rollout_free = train_free = 0.0
    synced = [0.0] * len(every)
    for step in range(max(len(alone.lengths) for alone in every)):
        for p, alone in enumerate(every):
            if step >= len(alone.lengths):
                continue
            rollout_free = max(rollout_free, synced[p]) + alone.rollouts(rolling)[step]
            train_free = max(train_free, rollout_free) + alone.gang(training)
            synced[p] = train_free
    return StaticPlan("pool split", max(synced), tuple(synced), (rolling, training))
