"""The drafters of a verl run as trainer and agent loops see them: groups, exchange of rollouts, metrics."""

from __future__ import annotations

import functools
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from slipstream.core.config import SlipstreamConfig
from slipstream.core.telemetry import Drafting, event_log
from slipstream.plugins.vllm.drafter import GROUP

logger = logging.getLogger(__name__)


def group_of(sample: Mapping[str, Any]) -> str | None:
    """The prompt group of a sample of the data set: its messages, which are the same in every epoch.

    verl's uid is new in every epoch, so it serves only where messages are no plain text (images).
    """
    messages = sample.get("raw_prompt")
    try:
        if messages is not None:
            return json.dumps(list(messages), sort_keys=True)
    except TypeError:
        pass
    uid = sample.get("uid")
    return None if uid is None else str(uid)


def in_groups(run_agent_loop: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `AgentLoopWorker._run_agent_loop`: every request of a sample carries its group to the engine."""

    @functools.wraps(run_agent_loop)
    async def run(self: Any, sampling_params: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        group = group_of(kwargs)
        if group is not None:
            extra_args = {**(sampling_params.get("extra_args") or {}), GROUP: group}
            sampling_params = {**sampling_params, "extra_args": extra_args}
        return await run_agent_loop(self, sampling_params, *args, **kwargs)

    return run


class ReplicaDrafters:
    """All replicas of a run, after every step: what each wrote goes to the others, counters go to the tracker."""

    def __init__(self, config: SlipstreamConfig) -> None:
        self._events = event_log(config)
        self._before: Counter[str] = Counter()
        self._feeding: list[ray.ObjectRef[None]] = []

    def after_step(self, servers: Sequence[Any], step: int | None) -> dict[str, float]:
        """Start an exchange, which nobody waits for, and return the metrics of the step."""
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


def with_drafter_metrics(
    consume_sync_metrics: Callable[..., dict[str, Any]], config: SlipstreamConfig
) -> Callable[..., dict[str, Any]]:
    """Wrap `PPOTrainer._consume_sync_metrics`, which verl calls at the end of every step."""

    @functools.wraps(consume_sync_metrics)
    def consume(self: Any) -> dict[str, Any]:
        if not hasattr(self, "slipstream_drafters"):
            self.slipstream_drafters = ReplicaDrafters(config)
        # separate_async has its standalone replicas apart
        managers = [getattr(self, name, None) for name in ("llm_server_manager", "standalone_server_manager")]
        replicas = [replica for manager in managers if manager is not None for replica in manager.get_replicas()]
        metrics = dict(consume_sync_metrics(self))
        if replicas:
            servers = [replica.server_handle for replica in replicas]
            metrics.update(self.slipstream_drafters.after_step(servers, self.global_steps))
        return metrics

    return consume
