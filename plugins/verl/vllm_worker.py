"""The extension class of a vLLM worker under verl: verl's own, plus slipstream's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch

from slipstream.core.weights import Subscriber
from slipstream.plugins.verl.adapters import Adapter, InstalledAdapter
from slipstream.plugins.vllm.engine import VllmEngine
from slipstream.plugins.vllm.worker_extension import Outcome, WorkerExtension
from verl.utils.vllm import resolve_weight_name
from verl.workers.rollout.vllm_rollout.utils import _resolve_vllm_weight_sync_local_rank, vLLMColocateWorkerExtension


class SlipstreamWorkerExtension(WorkerExtension, vLLMColocateWorkerExtension):
    """Loaded by vLLM from `replica.WORKER_EXTENSION`."""

    _slipstream_adapter: InstalledAdapter | None = None

    def slipstream_sync_adapter(self, endpoints: list[str], timeout: float, adapter: Adapter) -> Outcome:
        """`slipstream_sync` for the tensors of a LoRA adapter; the weights under it are not touched."""

        def find() -> Subscriber:
            shapes = tuple((name, tuple(shape)) for name, shape in shapes_told)
            if self._slipstream_adapter is None or not self._slipstream_adapter.holds(shapes):
                self._slipstream_adapter = InstalledAdapter(self, self._slipstream_name(), shapes)
            return self._slipstream_adapter.subscriber

        def install() -> None:
            assert self._slipstream_adapter is not None, "found before it is installed"
            self._slipstream_adapter.install(config)

        config, shapes_told = adapter
        return self._slipstream_take_part(find, endpoints, timeout, install)

    def _slipstream_engine(self) -> VllmEngine:
        return _VerlEngine(self)

    def _slipstream_local_rank(self) -> int:
        parallel = self.model_runner.vllm_config.parallel_config  # type: ignore[attr-defined]
        return int(_resolve_vllm_weight_sync_local_rank(self.local_rank, parallel))  # type: ignore[attr-defined]

    def _slipstream_name(self) -> str:
        rank = self.rank  # type: ignore[attr-defined]
        return f"replica {os.environ.get('VERL_REPLICA_RANK', '0')} rank {rank}"


class _VerlEngine(VllmEngine):
    """Knows verl's names for the weights under adapters (`...base_layer.weight`)."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> object:
        """The model's own loader, by the names that it has."""
        if self._worker.model_runner.vllm_config.lora_config is None:
            return super().load_weights(weights)
        model: Any = self.model
        names = {name for name, _ in self.tensors()}
        return super().load_weights((resolve_weight_name(model, name, names), tensor) for name, tensor in weights)
