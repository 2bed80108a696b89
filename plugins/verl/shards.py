"""The trainer's own shards instead of gathered tensors, where verl's training engine shows them."""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from slipstream.core.weights.trainer_shards import Held, TrainerShards, exchange_shards
from slipstream.plugins.verl.held import HeldTensor, of_flat_parameters, of_parameter, unfused
from verl.utils.device import get_device_id
from verl.utils.fsdp_utils import (
    fsdp_version,
    load_fsdp_model_to_gpu,
    merged_lora_context,
    normalize_peft_param_name,
)
from verl.utils.model import convert_weight_keys

ATTRIBUTE = "slipstream_shards"
"""Where a rollout adapter or a checkpoint engine of a trainer rank finds its `ShardSource`."""


def hand_over(init_model: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the worker's `init_model`: what publishes weights learns which training engine has them."""

    @functools.wraps(init_model)
    def wrapped(worker: Any, *args: Any, **kwargs: Any) -> Any:
        result = init_model(worker, *args, **kwargs)
        if "actor" in worker.role:
            source = shard_source(worker.actor.engine)
            for name in ("rollout", "checkpoint_engine"):
                if getattr(worker, name, None) is not None:
                    setattr(getattr(worker, name), ATTRIBUTE, source)
        return result

    return wrapped


def shard_source(engine: Any) -> ShardSource | None:
    """The shards of a verl training engine, or None where its weights have to be gathered."""
    if _version(engine):
        source: ShardSource = FsdpShards(engine)
    elif hasattr(engine, "bridge") and hasattr(engine, "vanilla_bridge"):
        from slipstream.plugins.verl.megatron_shards import MegatronShards

        source = MegatronShards(engine)
    else:
        return None
    engine.get_per_tensor_param = source.spare(engine.get_per_tensor_param)
    return source


class ShardSource(ABC):
    """The shards of this trainer rank, in the checkpoint's terms."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.in_use = False
        """Set when weights are published from here; verl then need not gather them as well."""

    def obstacle(self) -> str:
        """Why weights have to be gathered; empty when they need not. The same on every rank; may be a collective."""
        if getattr(self._engine, "_qat_enabled", False):
            return "verl quantises what it sends"
        return self._obstacle()

    def spare(self, gather: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the engine's `get_per_tensor_param`: nothing is gathered that nobody will look at.

        verl calls it before every sync. FSDP2 would not gather before the tensors are consumed, FSDP1 does.
        """

        @functools.wraps(gather)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return (iter(()), None) if self.in_use else gather(*args, **kwargs)

        return wrapped

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, flat local tensor) of every parameter and buffer of which this rank holds anything.

        Adapters that verl merges are merged while this runs, so every tensor has to be consumed before the next.
        """
        with self._ready():
            for name, held in self._held().items():
                if held.numel:
                    yield name, held.local().to(get_device_id(), non_blocking=True)

    def exchange(self) -> TrainerShards:
        """Tell the other ranks what this one holds; a collective.

        Raises:
            SyncError: the ranks hold different models.
        """
        return exchange_shards(self._held())

    @abstractmethod
    def _obstacle(self) -> str:
        """What this training engine has in the way."""

    @abstractmethod
    def _ready(self) -> AbstractContextManager[Any]:
        """The time in which the shards are what is to be sent; may be collective at both ends."""

    @abstractmethod
    def _held(self) -> Mapping[str, Held]:
        """By checkpoint name, in an order that all ranks share.

        Raises:
            ValueError: a part of it cannot be told from the shard alone.
        """


class FsdpShards(ShardSource):
    """Of verl's FSDP engine, both versions."""

    def _obstacle(self) -> str:
        if self._lora and (_version(self._engine) == 1 or not self._merges):
            return "LoRA adapters are merged into whole weights by FSDP1, or sent by verl"
        try:
            self._held()
        except ValueError as error:
            return str(error)
        return ""

    @property
    def _lora(self) -> bool:
        return hasattr(_unwrapped(self._engine.module), "peft_config")

    @property
    def _merges(self) -> bool:
        return bool(self._engine.model_config.lora.get("merge", False))

    def _ready(self) -> AbstractContextManager[Any]:
        if not self._lora:
            return contextlib.nullcontext()
        if not self._engine._uses_fsdp2_cpu_offload_policy:
            load_fsdp_model_to_gpu(self._engine.module)  # as verl does: merging computes on the device
        merged: AbstractContextManager[Any] = merged_lora_context(self._engine.module, backup_adapters=True)
        return merged

    def _held(self) -> dict[str, HeldTensor]:
        module = self._engine.module
        if _version(self._engine) == 1:
            named: Any = dict(of_flat_parameters(module))
        else:
            named = {name: of_parameter(parameter) for name, parameter in self._state_dict(module).items()}
        held: dict[str, HeldTensor] = convert_weight_keys(named, _unwrapped(module))
        model_type = self._engine.model_config.hf_config.model_type
        return {part: h for name, tensor in held.items() for part, h in unfused(name, tensor, model_type)}

    def _state_dict(self, module: Any) -> dict[str, torch.Tensor]:
        parameters = module.state_dict()
        merged: dict[str, torch.Tensor] = normalize_peft_param_name(parameters) if self._lora else parameters
        return merged


def _version(engine: Any) -> int:
    """1 or 2, 0 for anything but FSDP."""
    module = getattr(engine, "module", None)
    return int(fsdp_version(module)) if isinstance(module, torch.nn.Module) else 0  # type: ignore[no-untyped-call]


def _unwrapped(module: Any) -> Any:
    return getattr(module, "_fsdp_wrapped_module", module)
