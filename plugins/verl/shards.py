"""The trainer's own shards instead of gathered tensors, where verl's training engine shows them (FSDP2)."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from slipstream.core.weights import SyncError, TensorSpec
from slipstream.core.weights.plan import block, sharded
from slipstream.core.weights.trainer_shards import TrainerShards
from slipstream.triton_kernels import Box
from verl.utils.device import get_device_id
from verl.utils.fsdp_utils import fsdp_version
from verl.utils.model import convert_weight_keys
from verl.workers.engine.spec import BlockPlacement, ShardSpec, derive_dtensor_placement

ATTRIBUTE = "slipstream_shards"
"""Where a rollout adapter or a checkpoint engine of a trainer rank finds its `ShardSource`."""


def hand_over(init_model: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the worker's `init_model`: what publishes weights learns which training engine has them."""

    @functools.wraps(init_model)
    def wrapped(worker: Any, *args: Any, **kwargs: Any) -> Any:
        result = init_model(worker, *args, **kwargs)
        if "actor" in worker.role:
            source = ShardSource(worker.actor.engine)
            for name in ("rollout", "checkpoint_engine"):
                if getattr(worker, name, None) is not None:
                    setattr(getattr(worker, name), ATTRIBUTE, source)
        return result

    return wrapped


class ShardSource:
    """The shards of this trainer rank."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def obstacle(self) -> str:
        """Why weights have to be gathered; empty when they need not. The same on every rank."""
        engine = self._engine
        if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
            return "the trainer has one rank"
        if not hasattr(engine, "module") or fsdp_version(engine.module) != 2:  # type: ignore[no-untyped-call]
            return "the training engine is not FSDP2"
        if hasattr(engine.module, "peft_config"):
            return "LoRA adapters are merged or sent by verl"
        if getattr(engine, "_qat_enabled", False):
            return "verl quantises what it sends"
        for name, parameter in self._parameters().items():
            if ".mlp.experts." in name and parameter.dim() == 3:
                return f"verl unpacks {name} into single experts"
            if isinstance(parameter, DTensor) and any(placement.is_partial() for placement in parameter.placements):
                return f"{name} is a partial sum"
        return ""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, flat local tensor) of every parameter and buffer of which this rank holds anything."""
        for name, parameter in self._parameters().items():
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            if local.numel():
                yield name, local.detach().to(get_device_id(), non_blocking=True).reshape(-1)

    def exchange(self) -> TrainerShards:
        """Tell the other ranks what this one holds; a collective.

        Raises:
            SyncError: the ranks hold different models.
        """
        parameters = self._parameters()
        specs = tuple(
            TensorSpec.of(name, torch.empty(p.shape, dtype=p.dtype, device="meta")) for name, p in parameters.items()
        )
        mine = {name: [tuple(box) for box in _boxes(parameter)] for name, parameter in parameters.items()}
        told: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(told, (secrets.randbits(63), specs, mine))
        if any(other != specs for _, other, _ in told):
            raise SyncError(
                "the trainer ranks hold different sets of parameters; use slipstream.weight_sync.senders=one"
            )
        senders = {
            rank: {name: [Box(*box) for box in boxes] for name, boxes in held.items() if boxes}
            for rank, (_, _, held) in enumerate(told)
        }
        return TrainerShards(torch.distributed.get_rank(), told[0][0], specs, senders)

    def _parameters(self) -> dict[str, torch.Tensor]:
        parameters: dict[str, torch.Tensor] = convert_weight_keys(self._engine.module.state_dict(), self._engine.module)
        return parameters


def _boxes(parameter: torch.Tensor) -> list[Box]:
    """Checkpoint index to index in this rank's flat local tensor."""
    if not isinstance(parameter, DTensor):
        return sharded(tuple(parameter.shape))
    place, _, _ = derive_dtensor_placement(ShardSpec.from_param(parameter))
    if isinstance(place, BlockPlacement):
        return block(tuple(parameter.shape), place.global_offset, place.local_shape)
    return sharded(tuple(parameter.shape))
