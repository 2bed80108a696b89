"""verl's vLLM replica with slipstream's worker extension in its engine workers."""

from __future__ import annotations

from typing import Any

import ray

from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

WORKER_EXTENSION = "slipstream.plugins.verl.vllm_worker.SlipstreamWorkerExtension"


class SlipstreamHttpServer(vLLMHttpServer):
    """verl's vLLM server actor."""

    def _get_worker_extension_cls(self) -> str:
        return WORKER_EXTENSION

    def _resolve_sleep_level(self) -> int:
        # Level 2 throws the weights away, and a delta needs its base: keep them in host memory while asleep.
        return 1


class SlipstreamReplica(vLLMReplica):
    """verl's vLLM replica."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(SlipstreamHttpServer)
