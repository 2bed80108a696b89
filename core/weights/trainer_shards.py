"""How the ranks of one trainer hold the checkpoint together."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from slipstream.core.weights.errors import SyncError
from slipstream.core.weights.plan import Senders
from slipstream.core.weights.tensors import TensorSpec
from slipstream.triton_kernels import Box


class Held(Protocol):
    """This rank's part of a checkpoint tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def boxes(self) -> list[Box]: ...

    @property
    def dtype(self) -> torch.dtype | None: ...

    @property
    def numel(self) -> int: ...

    def local(self) -> torch.Tensor: ...


@dataclass(frozen=True)
class TrainerShards:
    """The same on every rank but for `rank`; each rank publishes what it holds, and nothing is gathered."""

    rank: int
    run: int
    """Random number of the run, shared by its ranks."""
    specs: tuple[TensorSpec, ...]
    """The checkpoint table: whole tensors, in an order that all ranks agree on."""
    senders: Senders
    """By rank and tensor name: checkpoint index to index in the rank's flat local tensor."""

    def held(self) -> list[int]:
        """Indices of the tensors of which this rank holds anything."""
        mine = self.senders[self.rank]
        return [index for index, spec in enumerate(self.specs) if mine.get(spec.name)]

    def held_elements(self) -> int:
        """How many elements this rank holds."""
        return sum(box.numel for boxes in self.senders[self.rank].values() for box in boxes)

    def held_bytes(self) -> int:
        """The same in bytes, in the trainer's dtypes."""
        mine = self.senders[self.rank]
        return sum(spec.torch_dtype.itemsize * box.numel for spec in self.specs for box in mine.get(spec.name, ()))


def whole_tensors(specs: Sequence[TensorSpec], run: int) -> TrainerShards:
    """A single sender that is given every tensor in full."""
    return TrainerShards(0, run, tuple(specs), {0: {spec.name: [Box.identity(spec.numel)] for spec in specs}})


def exchange_shards(held: Mapping[str, Held]) -> TrainerShards:
    """Tell the other trainer ranks what this one holds, and learn what they hold; a collective.

    Args:
        held: by checkpoint name, in an order that all ranks share.

    Raises:
        SyncError: the ranks hold different models.
    """
    mine = {name: (tensor.shape, tensor.dtype, [tuple(box) for box in tensor.boxes]) for name, tensor in held.items()}
    told: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(told, (secrets.randbits(63), mine))
    ranks = [parts for _, parts in told]
    senders = {
        rank: {name: [Box(*box) for box in boxes] for name, (_, _, boxes) in parts.items() if boxes}
        for rank, parts in enumerate(ranks)
    }
    return TrainerShards(torch.distributed.get_rank(), told[0][0], _table(ranks), senders)


def _table(ranks: Sequence[Mapping[str, tuple[tuple[int, ...], torch.dtype | None, Any]]]) -> tuple[TensorSpec, ...]:
    """The checkpoint as all ranks see it; a rank that holds nothing of a tensor need not know its dtype."""
    specs = []
    for name, (shape, _, _) in ranks[0].items():
        dtypes = {parts[name][1] for parts in ranks if name in parts} - {None}
        if any(parts.keys() != ranks[0].keys() or parts[name][0] != shape for parts in ranks) or len(dtypes) != 1:
            raise SyncError(
                f"the trainer ranks hold different sets of parameters or do not agree on {name}; use "
                "slipstream.weight_sync.senders=one"
            )
        specs.append(TensorSpec.of(name, torch.empty(shape, dtype=dtypes.pop(), device="meta")))
    return tuple(specs)
