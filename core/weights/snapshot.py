"""The trainer's copy of what the engines hold: the base that the next changes are taken against."""

from __future__ import annotations

from typing import NamedTuple

import torch

from slipstream.core.weights.wire import Bits, Places
from slipstream.core.weights.wire.arrays import elements, places, to_host
from slipstream.triton_kernels import HALVES, as_bits, cast_extract, extract_changes, gather, put


class TensorChanges(NamedTuple):
    """What one tensor's changes are: numpy arrays on the host, tensors on an accelerator."""

    positions: Places
    """int64[n], strictly ascending flat element indices."""
    old: Bits
    """[n], the elements at the base version."""
    new: Bits
    """[n], the elements now."""


class _Pending(NamedTuple):
    positions: Places
    old: Bits


class Snapshot:
    """Flat integer bits of every tensor in the engine's dtype, with changes that can be taken back until acknowledged.

    In host memory (the default): the model once, in the engine's dtype. Tensors of an accelerator are compared there,
    so each sync copies the model up, one tensor at a time (2 bytes an element of bf16), and the changes down (8 bytes
    and two elements each); they are encoded on the host.

    On the trainer's device, with `slipstream.weight_sync.snapshot=device`: the model once in the device's memory, from
    the first delta on, and nothing of it crosses; changes stay there and are encoded there.

    In either: positions and old values of the pending changes beside it (8 bytes and an element each).
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

    def advance(self, tensor: int, value: torch.Tensor, dtype: torch.dtype | None = None) -> TensorChanges:
        """Find out bit by bit where `value` differs, and put that into the snapshot.

        fp32 masters that become bf16 or fp16 are cast, compared and written in one pass (`cast_extract`), unless a NaN
        is among what changed: then torch casts the tensor.

        Args:
            tensor: index in the checkpoint table.
            value: the new tensor, any shape and device.
            dtype: the engine's; that of `value` by default.

        Returns:
            The changes, where the snapshot is.
        """
        bits = self._bits[tensor]
        base = bits.to(value.device)  # a copy for the time being, unless the snapshot is there
        if self._keep_on_device:
            bits = self._bits[tensor] = base
        value = value.detach().contiguous().reshape(-1)
        changes = _overwrite(base.view(dtype or value.dtype), value)
        if base is not bits:
            changes = TensorChanges(changes.positions.cpu().numpy(), to_host(changes.old), to_host(changes.new))
            put(elements(bits), changes.positions, changes.new)
        self._pending[tensor] = _Pending(changes.positions, changes.old)
        return changes

    def commit(self) -> None:
        """The engines acknowledged: the pending changes are the base now."""
        self._pending.clear()

    def roll_back(self) -> None:
        """The engines kept the old version: so does the snapshot."""
        for tensor, pending in self._pending.items():
            put(elements(self._bits[tensor]), pending.positions, pending.old)
        self._pending.clear()


def _overwrite(base: torch.Tensor, value: torch.Tensor) -> TensorChanges:
    """Make `base` what `value` is in its dtype; both flat, on one device."""
    bits = as_bits(base)
    if value.dtype == torch.float32 and base.dtype in HALVES:
        found, new, old = cast_extract(value, base)
        if not new.view(base.dtype).isnan().any():
            return TensorChanges(places(found), elements(old), elements(new))
        # A dense load makes of a NaN what torch's cast does, and that is no one thing: do the same.
        put(elements(bits), places(found), elements(old))
    found, new = extract_changes(base, value.to(base.dtype))
    where = places(found)
    before = gather(bits, where)
    put(elements(bits), where, elements(new))
    return TensorChanges(where, before, elements(new))
