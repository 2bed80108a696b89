"""The shards of verl's Megatron engine, by the rules of the bridge that it exports with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

from slipstream.plugins.verl.exported import ExportedTensor, differing, trace_export
from slipstream.plugins.verl.shards import ShardSource


class MegatronShards(ShardSource):
    """Tensor, pipeline and expert parallel ranks, with mbridge or Megatron-Bridge."""

    _traced: dict[str, ExportedTensor] | None = None

    def _obstacle(self) -> str:
        if getattr(self._engine, "peft_cls", None) is not None:
            return "LoRA adapters are merged or sent by Megatron's bridge"
        if self._traced is not None:
            return ""
        failure, held = "", {}
        with self._ready():
            try:
                held = trace_export(self._parameters(), self._export, torch.distributed.get_rank())
            except ValueError as error:
                failure = str(error)
            # The numbers say where elements went, only the weights say that nothing else was done to them.
            wrong = differing(held, self._export())
        if wrong and not failure:
            failure = f"the bridge computes {wrong[0]}"
        told: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(told, failure)
        if not any(told):
            self._traced = held
        return next(filter(None, told), "")

    def _held(self) -> dict[str, ExportedTensor]:
        assert self._traced is not None, "there was no obstacle"
        return self._traced

    def _ready(self) -> AbstractContextManager[Any]:
        if getattr(self._engine, "is_param_offload_enabled", False):
            from verl.utils import megatron_utils

            load: Any = megatron_utils.load_megatron_model_to_gpu
            load(self._engine.module, load_grad=False)  # verl moves them back after the sync
        return contextlib.nullcontext()

    def _parameters(self) -> list[torch.nn.Parameter]:
        chunks = self._engine.module
        return list({id(p): p for chunk in chunks for p in chunk.parameters()}.values())

    def _export(self) -> Iterable[tuple[str, torch.Tensor]]:
        bridge, chunks = self._engine.bridge, self._engine.module
        exported: Iterable[tuple[str, torch.Tensor]] = (
            bridge.export_weights(chunks) if self._engine.vanilla_bridge else bridge.export_hf_weights(chunks)
        )
        return exported
