"""The trainer's copy of what the engines hold: the base that the next changes are taken against."""

from __future__ import annotations

from typing import NamedTuple

import torch

from slipstream.core.weights.wire import I64, Bits
from slipstream.triton_kernels import as_bits, as_unsigned_numpy, extract_changes, gather


class TensorChanges(NamedTuple):
    """What one tensor's changes are, on the host."""

    positions: I64
    """int64[n], strictly ascending flat element indices."""
    old: Bits
    """unsigned[n], the elements at the base version."""
    new: Bits
    """unsigned[n], the elements now."""


class _Pending(NamedTuple):
    positions: torch.Tensor
    old: torch.Tensor


class Snapshot:
    """Flat integer bits of every tensor in the engine's dtype, with changes that can be taken back until acknowledged.

    Memory: the model once, in the engine's dtype, in host memory (or on the trainer's device with
    `slipstream.weight_sync.snapshot=device`, from the first delta on), plus old values of the pending changes.
    """

    def __init__(self, keep_on_device: bool) -> None:
        self._keep_on_device = keep_on_device
        self._bits: dict[int, torch.Tensor] = {}
        self._pending: dict[int, _Pending] = {}

    def store(self, tensor: int, value: torch.Tensor, owned: bool = False) -> None:
        """Set the whole tensor; used before the first acknowledgement only, so it cannot be taken back.

        Args:
            tensor: index in the checkpoint table.
            value: the tensor in the engine's dtype.
            owned: nobody else writes to `value`, so that it need not be copied.
        """
        self._bits[tensor] = as_bits(value.detach().contiguous()).reshape(-1).to("cpu", copy=not owned)

    def bits(self, tensor: int) -> torch.Tensor:
        """int[numel]: the tensor with pending changes applied."""
        return self._bits[tensor]

    def compare(self, tensor: int, value: torch.Tensor) -> tuple[TensorChanges, torch.Tensor, torch.Tensor]:
        """Find out bit by bit where `value` differs from the snapshot; pass the two tensors on to `write`.

        Args:
            tensor: index in the checkpoint table.
            value: the new tensor in the engine's dtype, any device.

        Returns:
            The changes on the host, and their positions and new values where the snapshot is.
        """
        bits = self._bits[tensor]
        if self._keep_on_device and bits.device != value.device:
            bits = self._bits[tensor] = bits.to(value.device)
        new = value.detach().contiguous().reshape(-1)
        positions, values = extract_changes(bits.to(new.device).view(new.dtype), new)
        positions, values = positions.to(bits.device), values.to(bits.device)
        old = _at(bits, positions)
        self._pending[tensor] = _Pending(positions, old)
        changes = TensorChanges(
            positions.cpu().numpy(), as_unsigned_numpy(old.cpu()), as_unsigned_numpy(as_bits(values).cpu())
        )
        return changes, positions, as_bits(values)

    def write(self, tensor: int, positions: torch.Tensor, values: torch.Tensor) -> None:
        """Put what `compare` found into the snapshot."""
        self._bits[tensor][positions] = values

    def commit(self) -> None:
        """The engines acknowledged: the pending changes are the base now."""
        self._pending.clear()

    def roll_back(self) -> None:
        """The engines kept the old version: so does the snapshot."""
        for tensor, pending in self._pending.items():
            self._bits[tensor][pending.positions] = pending.old
        self._pending.clear()


def _at(bits: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    if bits.device.type != "cpu":
        return bits[positions]
    found = gather(bits, positions.numpy())
    return torch.from_numpy(found.view(f"i{found.itemsize}") if found.itemsize > 1 else found)
