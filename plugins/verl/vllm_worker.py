"""The extension class of a vLLM worker under verl: verl's own, plus slipstream's."""

from __future__ import annotations

import os

from slipstream.plugins.vllm.worker_extension import WorkerExtension
from verl.workers.rollout.vllm_rollout.utils import _resolve_vllm_weight_sync_local_rank, vLLMColocateWorkerExtension


class SlipstreamWorkerExtension(WorkerExtension, vLLMColocateWorkerExtension):
    """Loaded by vLLM from `replica.WORKER_EXTENSION`."""

    def _slipstream_local_rank(self) -> int:
        parallel = self.model_runner.vllm_config.parallel_config  # type: ignore[attr-defined]
        return int(_resolve_vllm_weight_sync_local_rank(self.local_rank, parallel))  # type: ignore[attr-defined]

    def _slipstream_name(self) -> str:
        rank = self.rank  # type: ignore[attr-defined]
        return f"replica {os.environ.get('VERL_REPLICA_RANK', '0')} rank {rank}"
