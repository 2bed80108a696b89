"""The drafters of a verl run as trainer and agent loops see them: groups, exchange of rollouts, metrics."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from slipstream.core.config import SlipstreamConfig
from slipstream.plugins.vllm.drafter import GROUP
from slipstream.plugins.vllm.drafting import ReplicaDrafters


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
