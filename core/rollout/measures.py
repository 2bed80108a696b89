"""What a router did in a training step, as numbers for a tracker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slipstream.core.rollout.requests import ReplicaId


@dataclass(slots=True)
class _Served:
    answers: int = 0
    output_tokens: int = 0
    prompt: int = 0
    cached: int = 0
    running: float = 0.0
    """Sum of the requests in flight over the samples."""


@dataclass(slots=True)
class _Totals:
    served: dict[ReplicaId, _Served] = field(default_factory=dict)
    samples: int = 0
    queue: int = 0
    longest_queue: int = 0
    waits: int = 0
    waited: float = 0.0
    longest_wait: float = 0.0
    prompt: int = 0
    cached: int = 0
    recomputed: int = 0


class StepMeasures:
    """Collects from one `take` to the next."""

    def __init__(self) -> None:
        self._numbers: dict[ReplicaId, int] = {}
        self._members: dict[ReplicaId, None] = {}
        self._totals = _Totals()

    def joined(self, replica: ReplicaId) -> None:
        """Count a replica in, also when nothing goes there. Metrics have its number: how many came before it."""
        self._numbers.setdefault(replica, len(self._numbers))
        self._members[replica] = None
        self._totals.served.setdefault(replica, _Served())

    def left(self, replica: ReplicaId) -> None:
        """Leave a replica out after this step; it keeps its number."""
        self._members.pop(replica, None)

    def sample(self, waiting: int, running: Mapping[ReplicaId, int]) -> None:
        """Look at the queue and at the requests in flight of each replica."""
        totals = self._totals
        totals.samples += 1
        totals.queue += waiting
        totals.longest_queue = max(totals.longest_queue, waiting)
        for replica, count in running.items():
            totals.served.setdefault(replica, _Served()).running += count

    def admitted(self, seconds: float, waiting: int) -> None:
        """Count a request that had waited for so long, with so many others waiting still."""
        totals = self._totals
        totals.waits += 1
        totals.waited += seconds
        totals.longest_wait = max(totals.longest_wait, seconds)
        totals.longest_queue = max(totals.longest_queue, waiting)

    def answered(
        self, replica: ReplicaId, prompt_tokens: int, cached_tokens: int | None, output_tokens: int, known_tokens: int
    ) -> None:
        """Count an answer.

        :param cached_tokens: of the prompt, found in the cache; None when the engine does not say.
        :param known_tokens: of the prompt, that some replica had computed for this trajectory before.
        """
        totals = self._totals
        served = totals.served.setdefault(replica, _Served())
        served.answers += 1
        served.output_tokens += output_tokens
        if cached_tokens is not None:
            for each in (totals, served):
                each.prompt += prompt_tokens
                each.cached += cached_tokens
            totals.recomputed += max(known_tokens - cached_tokens, 0)

    def take(self) -> dict[str, float]:
        """Return the metrics since the last call and start anew; nothing when there was no answer."""
        totals, self._totals = self._totals, _Totals({replica: _Served() for replica in self._members})
        outputs = [each.output_tokens for each in totals.served.values()]
        if not sum(each.answers for each in totals.served.values()):
            return {}
        values: dict[str, float] = {
            "queue_mean": totals.queue / max(totals.samples, 1),
            "queue_max": totals.longest_queue,
            "wait_seconds_mean": totals.waited / max(totals.waits, 1),
            "wait_seconds_max": totals.longest_wait,
            "hit_rate": totals.cached / max(totals.prompt, 1),
            "prompt_tokens": totals.prompt,
            "recomputed_tokens": totals.recomputed,
            # 1 when all replicas produced the same, their number when one produced everything.
            "imbalance": max(outputs) * len(outputs) / max(sum(outputs), 1),
        }
        for replica, served in totals.served.items():
            name = f"replica_{self._numbers[replica]}"
            values[f"{name}/running"] = served.running / max(totals.samples, 1)
            values[f"{name}/answers"] = served.answers
            values[f"{name}/output_tokens"] = served.output_tokens
            if served.prompt:
                values[f"{name}/hit_rate"] = served.cached / served.prompt
        return values
