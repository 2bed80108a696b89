"""LoRA adapters of a verl run inside a vLLM worker: kept as tensors that deltas are written to, then installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from slipstream.core.weights import Subscriber, TensorEngine
from verl.utils.vllm import TensorLoRARequest
from verl.workers.rollout.vllm_rollout.utils import VLLM_LORA_INT_ID, VLLM_LORA_NAME, VLLM_LORA_PATH


class Adapter(NamedTuple):
    """What a worker must know before the tensors of an adapter can arrive; travels in the call that starts a sync."""

    config: dict[str, Any]
    """peft's, as verl hands it to vLLM."""
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    """Name and shape of every tensor."""


class InstalledAdapter:
    """The adapter that a worker generates with.

    vLLM copies an adapter into its own slots, padded and stacked, when it is added; what a delta needs as its base is
    kept here, in host memory. It outlives every kind of sleep.
    """

    def __init__(self, worker: Any, name: str, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        _let_verl_find_the_mapper()
        self._worker, self._shapes = worker, tuple(shapes)
        dtype = worker.model_runner.vllm_config.lora_config.lora_dtype
        self._engine = TensorEngine({name: torch.zeros(tuple(shape), dtype=dtype) for name, shape in shapes})
        self.subscriber = Subscriber(self._engine, f"{name} adapter")

    def holds(self, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> bool:
        """Whether it has exactly these tensors."""
        return self._shapes == tuple(shapes)

    def install(self, config: dict[str, Any]) -> None:
        """Make vLLM generate with what the last sync left here.

        Raises:
            Exception: vLLM's own error; the next sync seeds the adapter again.
        """
        request = TensorLoRARequest(
            lora_name=VLLM_LORA_NAME,
            lora_int_id=VLLM_LORA_INT_ID,
            lora_path=VLLM_LORA_PATH,
            peft_config=config,
            # vLLM keeps what it is given; the next delta is written to ours.
            lora_tensors={name: tensor.clone() for name, tensor in self._engine.tensors.items()},
        )
        try:
            # First the old one: with max_loras=1 there is no place for two.
            self._worker.remove_lora(VLLM_LORA_INT_ID)
            if not self._worker.add_lora(request):
                raise RuntimeError("vLLM did not take the adapter, and said nothing else")
        except BaseException:
            self.subscriber.invalidate("vLLM did not take the adapter")
            raise


def _let_verl_find_the_mapper() -> None:
    """verl 0.9.1 asks for a method of vLLM's name mapper that vLLM 0.29 calls otherwise; no adapter loads without."""
    from vllm.model_executor.models.utils import WeightsMapper

    if not hasattr(WeightsMapper, "get_unstacked_mapper") and hasattr(WeightsMapper, "get_rename_mapper"):
        WeightsMapper.get_unstacked_mapper = WeightsMapper.get_rename_mapper  # type: ignore[attr-defined]
