"""OpenRLHF's own vLLM worker extension on a CPU: the runs that slipstream's are compared with."""

from __future__ import annotations

from typing import Any

import torch
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap
from openrlhf.utils import distributed_util

from openrlhf_cpu.gloo import communicator
from slipstream.plugins.vllm.cpu_packing import keep_weights_unpacked

# vLLM packs linear weights on a CPU and drops the parameter: OpenRLHF's load_weights would have nothing to load into.
keep_weights_unpacked()
distributed_util.stateless_init_process_group = communicator


class CpuWorkerWrap(WorkerWrap):
    """`update_weight` allocates on "cuda"."""

    def update_weight(self, name: str, dtype: Any, shape: Any, empty_cache: bool = False) -> None:
        weight = torch.empty(shape, dtype=dtype)
        self._model_update_group.broadcast(weight, src=0)
        self.model_runner.model.load_weights(weights=[(name, weight)])
