"""Write an update into engine memory so that it can be taken back whole until it is final."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch

from slipstream.core.weights.assembly import TensorAssembly, UnitAssembly
from slipstream.core.weights.engine import Engine
from slipstream.core.weights.held import MASK
from slipstream.core.weights.layout import LayoutMap
from slipstream.core.weights.units import WireUnit
from slipstream.core.weights.wire import Changes, CorruptFrameError, Packed, Range, Section
from slipstream.core.weights.wire.arrays import to_device
from slipstream.triton_kernels import Applied, AppliedPacked, Box, scatter_changes, scatter_packed
from slipstream.triton_kernels import undo as undo_scatter


class _Overwritten(NamedTuple):
    view: torch.Tensor
    saved: torch.Tensor


class _Attributes(NamedTuple):
    place: MutableMapping[str, Any]
    saved: dict[str, Any]


class _Scattered(NamedTuple):
    storage: torch.Tensor
    applied: Applied | AppliedPacked


class Transaction:
    """One update of one worker. Memory: old values of what was written (host memory for whole tensors)."""

    def __init__(self, layout: LayoutMap, units: Sequence[WireUnit], engine: Engine) -> None:
        self._layout = layout
        self._units = units
        self._engine = engine
        self._undo: list[_Overwritten | _Scattered | _Attributes] = []
        self._whole = UnitAssembly(units)
        self._tensors = TensorAssembly(layout.specs)
        self._for_loader: dict[int, torch.Tensor] = {}  # by tensor
        self.used_loader = False
        """Whether the engine's loader ran: what it did beyond the saved tensors is unknown to an undo."""
        self.deltas: dict[int, int] = {}
        """Fingerprint change by unit, from the old values really found in memory."""
        self.rewritten: set[int] = set()
        """Units written in full; their fingerprint must be recomputed."""

    def write(self, section: Section) -> None:
        """Apply one decoded section.

        Raises:
            CorruptFrameError: it does not fit the unit, or what is in memory; nothing of it is left there.
        """
        if isinstance(section, Packed):
            self._scatter(section.unit, lambda storage, box: scatter_packed(storage, box, section.changes))
        elif isinstance(section, Changes):
            device = self._engine.device
            change = to_device(section.positions, device), to_device(section.values, device)
            self._scatter(section.unit, lambda storage, box: scatter_changes(storage, box, *change))
        else:
            self._collect(section)

    def write_fills(self) -> None:
        """Repeat the constants that the engine's loader writes beside the checkpoint (vocabulary padding)."""
        for fill in self._layout.fills:
            self._save(fill.view)
            fill.view.fill_(fill.value)

    def finish(self) -> None:
        """Hand the tensors that need it to the engine's loader.

        Raises:
            CorruptFrameError: a unit that travels in full is incomplete.
        """
        begun = [self._name(unit) for unit in self._whole.begun()]
        begun += [self._layout.specs[tensor].name for tensor in self._tensors.begun()]
        if begun:
            raise CorruptFrameError(f"the update ended inside {', '.join(begun[:5])}")
        self.load([(self._layout.specs[i].name, t) for i, t in sorted(self._for_loader.items())])

    def load(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        """Run the engine's loader on whole tensors, after saving what it is known to write and to derive."""
        if weights:
            whole = self._save_derived()
            for tensor in self._layout.opaque:
                if tensor.untyped_storage().data_ptr() not in whole:
                    self._save(tensor)
            self._run_loader(weights)

    def roll_back(self) -> None:
        """Restore every element that was written, last write first, and the engine tensors that were replaced."""
        for entry in reversed(self._undo):
            if isinstance(entry, _Overwritten):
                entry.view.copy_(entry.saved)
            elif isinstance(entry, _Attributes):
                entry.place.clear()
                entry.place.update(entry.saved)
            else:
                undo_scatter(entry.storage, entry.applied)
        self._undo.clear()

    def _name(self, unit: int) -> str:
        names = [self._layout.specs[tensor].name for tensor in self._units[unit].tensors]
        return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"

    def _scatter(self, number: int, scatter: Callable[[torch.Tensor, Box], Applied | AppliedPacked]) -> None:
        unit = self._units[number]
        if unit.by_loader:
            raise CorruptFrameError(f"{self._name(number)} must travel in full, but only its changes came")
        delta = 0
        for piece in unit.pieces:
            storage = self._layout.storages[piece.storage]
            try:
                applied = scatter(storage, piece.as_box())
            except ValueError as error:
                raise CorruptFrameError(f"{self._name(number)}: {error}") from error
            self._undo.append(_Scattered(storage, applied))
            delta += applied.fingerprint_delta
        self.deltas[number] = (self.deltas.get(number, 0) + delta) & MASK

    def _collect(self, part: Range) -> None:
        whole = self._whole.add(part)
        if whole is None:
            return
        unit = self._units[part.unit]
        if not unit.by_loader:
            self._overwrite(part.unit, whole)
        elif (found := self._tensors.add(unit, whole)) is not None:
            tensor, value = found
            self._for_loader[tensor] = value.to(self._engine.device)

    def _overwrite(self, unit: int, whole: torch.Tensor) -> None:
        for piece in self._units[unit].pieces:
            storage = self._layout.storages[piece.storage]
            source = whole.view(storage.dtype)
            box = piece.as_box()
            view = storage.as_strided(box.sizes, box.dst_strides, box.dst_offset)
            self._save(view)
            view.copy_(source.as_strided(box.sizes, box.src_strides, box.src_offset))
        self.rewritten.add(unit)

    def _save_derived(self) -> set[int]:
        """Save what the engine keeps beside the checkpoint's tensors; pointers of the storages saved in full."""
        places = self._engine.derived()
        self._undo += [_Attributes(place, dict(place)) for place in places]
        tensors = [value for place in places for value in place.values() if isinstance(value, torch.Tensor)]
        for tensor in {(t.data_ptr(), t.shape, t.stride()): t for t in tensors}.values():
            self._save(tensor)
        storages = [(t.untyped_storage(), t.numel() * t.element_size()) for t in tensors]
        return {storage.data_ptr() for storage, size in storages if size >= storage.nbytes()}

    def _save(self, view: torch.Tensor) -> None:
        view = view.detach()  # an engine may hold parameters that require gradients
        self._undo.append(_Overwritten(view, view.to("cpu", copy=True)))

    def _run_loader(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self.used_loader = True
        self._engine.load_weights(weights)
        self._engine.finish_loading()
