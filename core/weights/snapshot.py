"""The trainer's copy of what the engines hold: the base that the next changes are taken against."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from slipstream.core.weights.fingerprints import MASK, change_fingerprint, tensor_fingerprint
from slipstream.core.weights.layout import TensorLayout
from slipstream.core.weights.wire.frame import I64, U8
from slipstream.triton_kernels import Applied, Box, as_bits, extract_changes, scatter_changes, undo


class TensorChanges(NamedTuple):
    """What one tensor's changes are, on the host."""

    positions: I64
    """int64[n] flat element indices."""
    values: U8
    """uint8[n * width] new elements."""


class Snapshot:
    """Flat integer bits of every tensor in the engine's dtype, with changes that can be taken back until acknowledged.

    Memory: the model once, in the engine's dtype, in host memory (or on the trainer's device with
    `slipstream.weight_sync.snapshot=device`, from the first delta on), plus old values of the pending changes.
    """

    def __init__(self, keep_on_device: bool) -> None:
        self._keep_on_device = keep_on_device
        self._bits: dict[int, torch.Tensor] = {}
        self._pending: dict[int, Applied] = {}

    def store(self, tensor: int, value: torch.Tensor) -> None:
        """Set the whole tensor; used before the first acknowledgement only, so it cannot be taken back."""
        self._bits[tensor] = as_bits(value.detach().contiguous()).reshape(-1).to("cpu", copy=True)

    def bits(self, tensor: int) -> torch.Tensor:
        """int[numel]: the tensor with pending changes applied."""
        return self._bits[tensor]

    def dense(self, tensor: int) -> U8:
        """uint8[numel * width] view (host snapshots) or copy (device snapshots) of `bits`."""
        array: U8 = self._bits[tensor].cpu().view(torch.uint8).numpy()
        return array

    def update(self, tensor: int, value: torch.Tensor) -> TensorChanges:
        """Compare `value` with the snapshot bit by bit, put it in, and return what changed.

        Args:
            tensor: index in the checkpoint table.
            value: the new tensor in the engine's dtype, any device.
        """
        bits = self._bits[tensor]
        if self._keep_on_device and bits.device != value.device:
            bits = self._bits[tensor] = bits.to(value.device)
        new = value.detach().contiguous().reshape(-1)
        positions, values = extract_changes(bits.to(new.device).view(new.dtype), new)
        positions, values = positions.to(bits.device), values.to(bits.device)
        self._pending[tensor] = scatter_changes(bits, Box.identity(bits.numel()), positions, values)
        return TensorChanges(positions.cpu().numpy(), np.ascontiguousarray(values.cpu().numpy()).view(np.uint8))

    def commit(self) -> None:
        """The engines acknowledged: the pending changes are the base now."""
        self._pending.clear()

    def roll_back(self) -> None:
        """The engines kept the old version: so does the snapshot."""
        for tensor, applied in self._pending.items():
            undo(self._bits[tensor], applied)
        self._pending.clear()

    def expected(self, layout: TensorLayout, tensor: int) -> int:
        """Fingerprint a worker with `layout` must report, from the whole tensor."""
        return tensor_fingerprint(layout, self._bits[tensor])

    def expected_change(self, layout: TensorLayout, tensor: int) -> int:
        """How the pending changes move that fingerprint, mod 2^64."""
        applied = self._pending.get(tensor)
        if applied is None or applied.dst_index.numel() == 0:
            return 0
        positions = applied.dst_index.cpu().numpy()
        unsigned = np.dtype(f"u{self._bits[tensor].element_size()}")
        old = applied.old_values.cpu().numpy().view(unsigned).astype(np.uint64)
        new = self._bits[tensor][applied.dst_index].cpu().numpy().view(unsigned).astype(np.uint64)
        return change_fingerprint(layout, positions, old, new) & MASK
