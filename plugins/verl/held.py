"""What one trainer rank holds of one checkpoint tensor, and the ways to find out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from slipstream.core.weights.plan import block, sharded, subtensor
from slipstream.triton_kernels import Box
from verl.workers.engine.fsdp.utils import unfuse_moe_params
from verl.workers.engine.spec import BlockPlacement, ShardSpec, derive_dtensor_placement


@dataclass
class HeldTensor:
    """This rank's part of a checkpoint tensor; `boxes` is empty where it holds nothing of it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    boxes: list[Box]
    """Checkpoint index to index in `local()`."""
    storage: torch.Tensor
    """A tensor of the trainer in which the part lies contiguously."""
    start: int = 0
    """Flat index of its first element there."""

    @property
    def numel(self) -> int:
        """Elements that this rank holds."""
        return sum(box.numel for box in self.boxes)

    def local(self) -> torch.Tensor:
        """The part as it is now, flat, where the trainer keeps it; a view wherever the trainer's tensor allows it."""
        return self.storage.detach().reshape(-1)[self.start : self.start + self.numel]

    def part(self, shape: tuple[int, ...], first: int) -> HeldTensor:
        """What this rank holds of a tensor of `shape` that starts at element `first` of this one.

        Raises:
            ValueError: it does not lie contiguously here.
        """
        boxes = subtensor(self.boxes, first, first + torch.Size(shape).numel())
        held = HeldTensor(shape, self.dtype, boxes, self.storage)
        if not boxes:
            return held
        at = min(box.dst_offset for box in boxes)
        if max(box.dst_offset + box.dst_span for box in boxes) - at != held.numel:
            raise ValueError(f"elements {first} on of a tensor of shape {self.shape} lie scattered in the local shard")
        boxes = [box._replace(dst_offset=box.dst_offset - at) for box in boxes]
        return HeldTensor(shape, self.dtype, boxes, self.storage, self.start + at)


def of_parameter(parameter: torch.Tensor) -> HeldTensor:
    """A parameter or buffer as FSDP2 leaves it: a DTensor, or whole on every rank.

    Raises:
        ValueError: every rank has a summand of it.
    """
    shape = tuple(parameter.shape)
    if not isinstance(parameter, DTensor):
        return HeldTensor(shape, parameter.dtype, sharded(shape), parameter)
    if any(placement.is_partial() for placement in parameter.placements):
        raise ValueError(f"a parameter of shape {shape} is a partial sum")
    place, _, _ = derive_dtensor_placement(ShardSpec.from_param(parameter))
    boxes = (
        block(shape, place.global_offset, place.local_shape) if isinstance(place, BlockPlacement) else sharded(shape)
    )
    return HeldTensor(shape, parameter.dtype, boxes, parameter.to_local())


def of_flat_parameters(module: FullyShardedDataParallel) -> Iterator[tuple[str, HeldTensor]]:
    """Every parameter and persistent buffer of an FSDP1 model, by its name in the unwrapped model.

    FSDP1 lays the parameters of a unit one behind the other and gives each rank a range of that, so a rank holds a
    flat range of a tensor. `FlatParameter` tells which, in attributes that torch documents but does not export.

    Raises:
        ValueError: a unit is not sharded, or not at the moment.
    """
    for prefix, unit in module.named_modules():
        if not isinstance(unit, FullyShardedDataParallel) or unit._handle is None:
            continue
        flat = unit._handle.flat_param
        if not unit._handle.uses_sharded_strategy or flat.data.shape != flat._sharded_size:
            raise ValueError(f"the FSDP unit {prefix or 'at the root'} holds its whole weights, not its shard")
        held = {
            name: HeldTensor(tuple(shape), flat.dtype, _flat_range(info), flat.data, info.offset_in_shard or 0)
            for name, shape, info in zip(flat._fqns, flat._shapes, flat._shard_param_infos, strict=True)
        }
        for shared in flat._shared_param_infos:
            twin = _joined(shared.prim_module_name, shared.prim_param_name)
            held[_joined(shared.module_name, shared.param_name)] = held[twin]
        for name, tensor in held.items():
            yield _unwrapped(_joined(prefix, name)), tensor
    for prefix, plain in module.named_modules():
        for name, buffer in plain.named_buffers(recurse=False):
            if name not in plain._non_persistent_buffers_set:
                yield _unwrapped(_joined(prefix, name)), of_parameter(buffer)


def unfused(name: str, held: HeldTensor, model_type: str) -> Iterator[tuple[str, HeldTensor]]:
    """The checkpoint tensors that verl makes of one: single experts of a stack, usually just itself.

    verl's own function says which, run on a tensor without storage.

    Raises:
        ValueError: verl does more than cut the tensor into contiguous parts, or a part lies scattered in the shard.
    """
    probe = torch.empty(held.shape, dtype=held.dtype, device="meta")
    for part_name, part in unfuse_moe_params([(name, probe)], model_type):
        if part is probe:
            yield name, held
            continue
        if part.untyped_storage()._cdata != probe.untyped_storage()._cdata or not part.is_contiguous():
            raise ValueError(f"verl computes {part_name} from {name}")
        yield part_name, held.part(tuple(part.shape), int(part.storage_offset()))


def _flat_range(info: Any) -> list[Box]:
    """Of torch's `_ShardParamInfo`."""
    return [Box(info.intra_param_start_idx, 0, (info.numel_in_shard,), (1,), (1,))] if info.in_shard else []


def _joined(*names: str) -> str:
    return ".".join(name for name in names if name)


def _unwrapped(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "").replace("_checkpoint_wrapped_module.", "")
