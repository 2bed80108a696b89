"""verl's vLLM replica with slipstream's worker extension in its engine workers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import ray

from slipstream.plugins.verl.adapters import Adapter
from slipstream.plugins.verl.drafting_server import VllmDraftingServer
from slipstream.plugins.verl.limited_server import LimitedServer
from slipstream.plugins.verl.routing.server import RoutedServer
from slipstream.plugins.vllm.frontend import sync_workers
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

WORKER_EXTENSION = "slipstream.plugins.verl.vllm_worker.SlipstreamWorkerExtension"


class ExtendedServer:
    """Mixin for verl's vLLM server actor: its engine workers have slipstream's methods."""

    engine: Any

    def _get_worker_extension_cls(self) -> str:
        return WORKER_EXTENSION


class SyncedServer(ExtendedServer):
    """Mixin for verl's vLLM server actor: its engine takes slipstream's weight sync."""

    def _resolve_sleep_level(self) -> int:
        # Level 2 throws the weights away, and a delta needs its base: keep them in host memory while asleep.
        return 1

    async def slipstream_sync(self, endpoints: list[str], timeout: float, adapter: Adapter | None = None) -> None:
        """Make every worker take part in the sync at `endpoints`, of its weights or of this LoRA adapter.

        Raises:
            EngineFailedError: with the errors of all workers that failed, or that they did not answer.
        """
        if adapter is None:
            await sync_workers(self.engine, endpoints, timeout)
        else:
            await sync_workers(self.engine, endpoints, timeout, "slipstream_sync_adapter", adapter=adapter)


_SERVERS: dict[str, tuple[type, ...]] = {
    "weight_sync": (SyncedServer,),
    "drafter": (VllmDraftingServer, ExtendedServer),
    "router": (RoutedServer,),
    "placement": (LimitedServer,),
}


def replica_class(features: Collection[str]) -> type[vLLMReplica]:
    """verl's vLLM replica, with a server that does what `features` need."""
    mixins = dict.fromkeys(mixin for feature, its in _SERVERS.items() if feature in features for mixin in its)
    server = type("SlipstreamHttpServer", (*mixins, vLLMHttpServer), {})

    class SlipstreamReplica(vLLMReplica):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.server_class = ray.remote(server)

    return SlipstreamReplica
