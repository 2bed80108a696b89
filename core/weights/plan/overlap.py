"""The elements two boxes of one checkpoint tensor have in common, in three coordinate systems."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from slipstream.triton_kernels import Box


class Overlap(NamedTuple):
    """A regular set of elements of a checkpoint tensor that a sender holds and a receiver needs.

    Element k = (k_0, .., k_{d-1}), 0 <= k_j < sizes[j], is element `checkpoint_offset + sum k_j *
    checkpoint_strides[j]` of the checkpoint tensor (flat, row-major); the same with `sender_*` in the sender's flat
    shard and with `receiver_*` in the receiver's storage. It travels as element number `sum k_j * prod(sizes[j+1:])`:
    the wire order. The checkpoint index ascends along it, so equal sets of elements have one wire order, however they
    are split into dimensions. All numbers count elements.
    """

    checkpoint_offset: int
    sender_offset: int
    receiver_offset: int
    sizes: tuple[int, ...]
    checkpoint_strides: tuple[int, ...]
    """Descending; each at least the span of the dimensions inside it."""
    sender_strides: tuple[int, ...]
    receiver_strides: tuple[int, ...]

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return prod(self.sizes)

    @property
    def wire_strides(self) -> tuple[int, ...]:
        """Row-major strides over `sizes`."""
        strides, step = [], 1
        for size in reversed(self.sizes):
            strides.append(step)
            step *= size
        return tuple(reversed(strides))

    @property
    def region(self) -> Box:
        """Checkpoint index to wire index."""
        return Box(self.checkpoint_offset, 0, self.sizes, self.checkpoint_strides, self.wire_strides)

    @property
    def send(self) -> Box:
        """Index in the sender's shard to wire index."""
        return Box(self.sender_offset, 0, self.sizes, self.sender_strides, self.wire_strides)

    @property
    def receive(self) -> Box:
        """Wire index to index in the receiver's storage."""
        return Box(0, self.receiver_offset, self.sizes, self.wire_strides, self.receiver_strides)

    @property
    def sender_to_receiver(self) -> Box:
        """Index in the sender's shard to index in the receiver's storage, without the wire."""
        return Box(self.sender_offset, self.receiver_offset, self.sizes, self.sender_strides, self.receiver_strides)
