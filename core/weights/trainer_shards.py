"""How the ranks of one trainer hold the checkpoint together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.weights.plan import Senders
from slipstream.core.weights.tensors import TensorSpec
from slipstream.triton_kernels import Box


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
