"""LoRA adapters of a verl run inside a vLLM worker: kept as tensors that deltas are written to, then installed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch

from slipstream.core.weights import Subscriber
from slipstream.triton_kernels import as_bits
from verl.utils.vllm import TensorLoRARequest
from verl.workers.rollout.vllm_rollout.utils import VLLM_LORA_INT_ID, VLLM_LORA_NAME, VLLM_LORA_PATH


class Adapter(NamedTuple):
    """What a worker must know before the tensors of an adapter can arrive; travels in the call that starts a sync."""

    config: dict[str, Any]
    """peft's, as verl hands it to vLLM."""
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    """Name and shape of every tensor."""


class AdapterEngine:
    """`slipstream.core.weights.engine.Engine` over the tensors of one adapter, in host memory.

    vLLM copies an adapter into its own slots, padded and stacked, when it is added; what a delta needs as its base is
    kept here. It outlives every kind of sleep.
    """

    device = torch.device("cpu")

    def __init__(self, shapes: Iterable[tuple[str, tuple[int, ...]]], dtype: torch.dtype) -> None:
        self.tensors = {name: torch.zeros(tuple(shape), dtype=dtype) for name, shape in shapes}

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy; every tensor is written in place."""
        for name, weight in weights:
            self.tensors[name].copy_(weight)

    def finish_loading(self) -> None:
        """Nothing is derived from them here."""

    def derived(self) -> list[MutableMapping[str, Any]]:
        """Nothing."""
        return []

    def live_storages(self) -> dict[int, int]:
        """Data pointer to bytes."""
        storages = (tensor.untyped_storage() for tensor in self.tensors.values())
        return {storage.data_ptr(): storage.nbytes() for storage in storages}

    def transformed(self) -> list[torch.Tensor]:
        """None."""
        return []

    def checksums(self) -> dict[str, str]:
        """SHA-256 of the raw bytes."""
        return {n: hashlib.sha256(as_bits(t).numpy().tobytes()).hexdigest() for n, t in self.tensors.items()}


class InstalledAdapter:
    """The adapter that a worker generates with."""

    def __init__(self, worker: Any, name: str, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        _let_verl_find_the_mapper()
        self._worker, self._shapes = worker, tuple(shapes)
        self._engine = AdapterEngine(shapes, worker.model_runner.vllm_config.lora_config.lora_dtype)
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
