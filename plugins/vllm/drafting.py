"""Several engines that draft: what each wrote goes to the others, and their counters become metrics of the step.

`DraftingEngine` is the side of an engine's Ray actor, `ReplicaDrafters` that of the trainer. Nothing here imports vLLM.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.core.config import SlipstreamConfig
from slipstream.core.telemetry import Drafting, event_log
from slipstream.plugins.vllm.drafter import Rollout, prompt_group

logger = logging.getLogger(__name__)


class DraftingEngine:
    """Mixin for the Ray actor that owns an engine whose workers have `worker_extension.WorkerExtension`."""

    _alone = False
    """Whether no other engine wants what this one writes."""
    _written: list[Rollout] | None = None

    def _engine(self) -> Any:
        """The `AsyncLLM`."""
        raise NotImplementedError

    def _note_rollout(self, group: str | None, prompt: Any, response: Any, version: int) -> None:
        """Keep what a request wrote until the others fetch it; without a group it is that of its prompt."""
        if self._alone or not len(response):
            return
        prompt, response = (np.asarray(tokens, np.int32) for tokens in (prompt, response))
        if self._written is None:  # Ray's actors differ in how they are built, so there is no __init__ here
            self._written = []
        self._written.append(Rollout(group or prompt_group(prompt), prompt.tobytes(), response.tobytes(), version))

    async def slipstream_take_rollouts(self, alone: bool) -> list[Rollout]:
        """What this engine wrote since the last call; `alone`: there is no other one, so none is kept from now on."""
        written, self._written = self._written, None
        self._alone = alone
        return written or []

    async def slipstream_feed_rollouts(self, *written: list[Rollout]) -> None:
        """Take what other engines wrote into the history."""
        await self._ask("slipstream_drafter_feed", [tuple(rollout) for part in written for rollout in part])

    async def slipstream_drafter_version(self, version: int) -> None:
        """Name the policy that generates from now on."""
        await self._ask("slipstream_drafter_version", version)

    async def slipstream_drafter_statistics(self) -> dict[str, float]:
        """Every counter of this engine's drafter."""
        found: list[dict[str, float] | None] = await self._ask("slipstream_drafter_statistics")
        return next(statistics for statistics in found if statistics is not None)

    async def _ask(self, method: str, *args: Any) -> Any:
        return await self._engine().collective_rpc(method=method, args=args)


class ReplicaDrafters:
    """All replicas of a run, after every step: what each wrote goes to the others, counters go to the tracker."""

    def __init__(self, config: SlipstreamConfig) -> None:
        self._events = event_log(config)
        self._before: Counter[str] = Counter()
        self._feeding: list[Any] = []

    def after_step(self, servers: Sequence[Any], step: int | None) -> dict[str, float]:
        """Start an exchange, which nobody waits for, and return the metrics of the step."""
        import ray

        self._exchange(servers)
        replicas: list[dict[str, float]] = ray.get([each.slipstream_drafter_statistics.remote() for each in servers])
        totals: Counter[str] = Counter()
        for replica in replicas:
            totals.update(replica)
        values = drafter_metrics(totals, self._before, len(replicas))
        self._before = totals
        self._events.write(Drafting.from_metrics(step, values))
        return {f"slipstream/drafter/{name}": value for name, value in values.items()}

    def _exchange(self, servers: Sequence[Any]) -> None:
        """Tokens go from replica to replica: this process sees only references."""
        import ray

        if self._feeding:
            done, self._feeding = ray.wait(self._feeding, num_returns=len(self._feeding), timeout=0)
            for each in done:
                try:
                    ray.get(each)
                except Exception as error:
                    logger.warning("slipstream: a replica's drafter did not get what the others wrote: %s", error)
        alone = len(servers) < 2
        written = [server.slipstream_take_rollouts.remote(alone) for server in servers]
        if not alone:
            for i, server in enumerate(servers):
                others = [part for j, part in enumerate(written) if j != i]
                self._feeding.append(server.slipstream_feed_rollouts.remote(*others))


def drafter_metrics(totals: Counter[str], before: Counter[str], replicas: int) -> dict[str, float]:
    """Metrics of a step from the counters of all replicas, now and a step ago.

    Returns:
        acceptance: accepted tokens per verified one; tokens_per_step: tokens that a request got per step of the engine;
        drafted, verified, accepted, emitted: tokens; seconds: spent in drafting, all replicas; off_share: steps that
        the load switch kept plain; drafting: share of replicas that draft now; turned_on, turned_off, probes: of the
        switch; fed: rollouts that replicas got from others; history_tokens, history_mbytes: held by a replica.
    """
    step = totals.copy()
    step.subtract(before)
    return {
        "acceptance": step["accepted"] / max(1, step["verified"]),
        "tokens_per_step": step["emitted"] / max(1, step["row_steps"]),
        **{name: float(step[name]) for name in ("drafted", "verified", "accepted", "emitted")},
        "seconds": step["drafting_seconds"],
        "off_share": step["steps_off"] / max(1, step["steps"]),
        "drafting": totals["drafting"] / replicas,
        **{name: float(step[name]) for name in ("turned_on", "turned_off", "probes", "fed")},
        "history_tokens": totals["history_tokens"] / replicas,
        "history_mbytes": totals["history_bytes"] / replicas / 1e6,
    }
