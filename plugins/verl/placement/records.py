"""What the stages of a verl run took: for the forecast of the next step, the event log and verl's tracker."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.core.graph import DecodeCost, StageKind, StageSeconds, StepHistory, SubStageGraph, curve_of_lengths, cut
from slipstream.core.telemetry import EventLog, LeasedStage

ITERATIONS_PER_REQUEST = 64
"""Assumed: an iteration of an engine takes twice as long with so many requests (`docs/graph.md`)."""
_LOGPROB = ("reward", "old_log_prob", "ref", "values")  # what ran beside the rollout is part of its time
_TRAIN = ("update_critic", "update_actor", "save_checkpoint")
_ROLLOUT, _SYNC = "rollout", "update_weights"


class StepRecords:
    """The steps of one run."""

    def __init__(self, pipeline: str, devices: Sequence[tuple[str, str]], events: EventLog) -> None:
        """Start empty.

        Args:
            devices: (node, device) of every GPU; the requests of a rollout are taken to be dealt to them evenly.
        """
        self.pipeline, self._workers, self._events = pipeline, len(devices), events
        self.history = StepHistory()
        self._lengths: np.ndarray[Any, np.dtype[np.float64]] = np.zeros(0)
        self._seconds: dict[str, float] = defaultdict(float)
        self._rollout = 0.0
        self._step = 0.0

    def stage(self, name: str, step: int, began: float, seconds: float, waited: float) -> None:
        """Note a stage that has ended.

        Args:
            began: Unix time.
            waited: seconds for its lease, before it began.
        """
        self._seconds[name] += seconds
        self._events.write(
            LeasedStage(pipeline=self.pipeline, step=step, stage=name, began=began, seconds=seconds, waited=waited)
        )

    def lengths(self, tags: list[dict[str, Any]]) -> None:
        """Note the tokens of each response of the rollout that has ended, from verl's tags."""
        found = [float(tag["response_len"]) for tag in tags if tag.get("response_len")]
        self._lengths = np.concatenate([self._lengths, np.array(found, dtype=np.float64)])

    def end_step(self, step: int) -> dict[str, float]:
        """Learn the step; returns its metrics."""
        took = dict(self._seconds)
        stages = StageSeconds(
            logprob=sum(took.get(name, 0.0) for name in _LOGPROB),
            train=sum(took.get(name, 0.0) for name in _TRAIN),
            sync=took.get(_SYNC, 0.0),
        )
        rollout = took.get(_ROLLOUT, 0.0)
        if self._lengths.size:
            self.history.add(self._lengths, stages)
            graph = self.graph(step, rollout, stages)
            self._events.emit("sub_stages", pipeline=self.pipeline, step=step, graph=graph.to_json().decode())
        self._rollout = rollout if self._rollout == 0.0 else 0.5 * (rollout + self._rollout)
        self._step = self._rollout + stages.logprob + stages.train + stages.sync
        metrics = {f"{name}_seconds": seconds for name, seconds in took.items()}
        if self._lengths.size:
            metrics["prediction_error"] = self.history.predict(self._lengths.size).error
        self._seconds.clear()
        self._lengths = np.zeros(0)
        return metrics

    def graph(self, step: int, rollout: float, stages: StageSeconds) -> SubStageGraph:
        """Return the sub-stages of the step that is being recorded.

        Args:
            rollout: its seconds, from which the cost of an iteration follows.
        """
        dealt = [each for w in range(self._workers) if (each := self._lengths[w :: self._workers]).size]
        iterations = max(float(each.max() + each.sum() / ITERATIONS_PER_REQUEST) for each in dealt)
        iteration = max(rollout, 1e-9) / iterations
        cost = DecodeCost(iteration, iteration / ITERATIONS_PER_REQUEST, 0.0)
        curves = [curve_of_lengths(each, cost, 0.0) for each in dealt]
        kinds = [(StageKind.LOGPROB, stages.logprob), (StageKind.TRAIN, stages.train), (StageKind.SYNC, stages.sync)]
        return cut(self.pipeline, step, curves, kinds, cost)

    def remaining(self, steps: int) -> float:
        """Return the seconds that this run would take alone until its end; 0 before the first step has ended.

        Args:
            steps: that have not ended.
        """
        return max(0.0, steps * self._step - sum(self._seconds.values()))


class StageClock:
    """Measures one stage."""

    def __init__(self) -> None:
        self.began, self._from = time.time(), time.monotonic()

    @property
    def seconds(self) -> float:
        """So far."""
        return time.monotonic() - self._from
