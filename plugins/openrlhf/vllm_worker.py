"""The extension class of a vLLM worker under OpenRLHF: OpenRLHF's own, plus slipstream's."""

from __future__ import annotations

from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap
from slipstream.plugins.vllm.worker_extension import WorkerExtension


class SlipstreamWorkerExtension(WorkerExtension, WorkerWrap):  # type: ignore[misc]
    """Loaded by vLLM from `engine_actor.WORKER_EXTENSION`."""

    slipstream_writers = (*WorkerExtension.slipstream_writers, "update_weight", "update_weight_cuda_ipc")
