"""What a transfer plan consists of.

There can be a million of these, so they are structs that the garbage collector need not visit (they form no cycles).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from slipstream.core.weights.tensors import digest
from slipstream.triton_kernels import Box


class Destination(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a receiver puts the elements of a transfer."""

    receiver: str
    storage: int
    """Index of the storage in that receiver (`Piece.storage`)."""
    box: Box
    """Wire index to element index in the storage."""


class Transfer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Elements of one tensor that one sender encodes once, for one or more destinations.

    All three boxes map the same elements. The wire index counts them in ascending checkpoint index.
    """

    tensor: str
    sender: int
    region: Box
    """Checkpoint index to wire index."""
    send: Box
    """Index in the sender's flat local shard to wire index."""
    destinations: tuple[Destination, ...]
    """Sorted; a receiver that holds the elements twice (tied) has two."""

    @property
    def numel(self) -> int:
        """How many elements travel."""
        return self.region.numel

    @property
    def receivers(self) -> tuple[str, ...]:
        """Who gets the bytes, each once, sorted."""
        return tuple(dict.fromkeys(destination.receiver for destination in self.destinations))


@dataclass(frozen=True)
class TransferPlan:
    """Which elements go from which sender to which receivers, each receiver getting its own and nothing else."""

    transfers: tuple[Transfer, ...]
    """By tensor name, then ascending first element: the same tuple whichever process computes it."""
    load: dict[int, int]
    """Bytes that leave each sender when every element travels: a transfer counts once for each receiver."""

    def of_sender(self, sender: int) -> list[Transfer]:
        """What a trainer rank sends, in plan order."""
        return [transfer for transfer in self.transfers if transfer.sender == sender]

    def of_receiver(self, receiver: str) -> list[Transfer]:
        """What an engine worker receives, in plan order, with the destinations of that worker only."""
        mine = []
        for transfer in self.transfers:
            own = tuple(destination for destination in transfer.destinations if destination.receiver == receiver)
            if own:
                mine.append(msgspec.structs.replace(transfer, destinations=own))
        return mine

    @property
    def digest(self) -> str:
        """Equal for equal plans, to check that all ranks follow the same one."""
        return digest(self.transfers)
