"""OpenRLHF's vLLM actor with slipstream in its engine workers."""

from __future__ import annotations

from typing import Any

import ray

from openrlhf.trainer.ray import vllm_engine
from slipstream.plugins.openrlhf.actor_classes import by_reference, plain
from slipstream.plugins.vllm.frontend import sync_workers

WORKER_EXTENSION = "slipstream.plugins.openrlhf.vllm_worker.SlipstreamWorkerExtension"

_Base: Any = plain(vllm_engine.RolloutRayActor)


@by_reference
class SlipstreamRolloutActor(_Base):  # type: ignore[misc]
    """Takes the place of `RolloutRayActor`."""

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]  # as Ray allows
        kwargs["worker_extension_cls"] = WORKER_EXTENSION
        await super().__init__(*args, **kwargs)

    async def slipstream_sync(self, endpoints: list[str], timeout: float) -> None:
        """Make every worker take part in the sync at `endpoints`.

        Raises:
            EngineFailedError: with the errors of all workers that failed, or that they did not answer.
        """
        await sync_workers(self.llm, endpoints, timeout)

    async def slipstream_checksums(self) -> list[dict[str, str]]:
        """SHA-256 of every parameter and buffer, by worker."""
        checksums: list[dict[str, str]] = await self.llm.collective_rpc("slipstream_checksums")
        return checksums

    def slipstream_node(self) -> str:
        """The Ray node this engine is on."""
        return str(ray.get_runtime_context().get_node_id())
