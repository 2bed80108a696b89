"""Write an update into engine memory so that it can be taken back whole until it is final."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.core.weights.assembly import TensorAssembly, UnitAssembly
from slipstream.core.weights.engine import Engine
from slipstream.core.weights.held import MASK
from slipstream.core.weights.layout import LayoutMap
from slipstream.core.weights.units import WireUnit
from slipstream.core.weights.wire import Changes, CorruptFrameError, Packed, PackedSections, Range, Section
from slipstream.core.weights.wire.arrays import to_device
from slipstream.triton_kernels import (
    MOVED_OUT,
    Applied,
    AppliedPacked,
    Box,
    PackedChanges,
    PackedUnits,
    Places,
    UnitsApplied,
    scatter_changes,
    scatter_packed,
)
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


def write_parts(applied: UnitsApplied, begin: int, end: int) -> int:
    """`UnitsApplied.write`, where tests can reach it."""
    return applied.write(begin, end)


def places_of(layout: LayoutMap, units: Sequence[WireUnit]) -> Places:
    """Where a worker holds the elements of units; none of those that its engine's loader takes."""
    boxes = [[] if unit.by_loader else [(p.storage, p.as_box()) for p in unit.pieces] for unit in units]
    return Places.of(layout.storages, boxes)


class Transaction:
    """One update of one worker. Memory: old values of what was written (host memory for whole tensors)."""

    def __init__(
        self, layout: LayoutMap, units: Sequence[WireUnit], engine: Engine, places: Places | None = None
    ) -> None:
        """Begin.

        Args:
            layout: of the worker.
            units: of all its feeds.
            engine: the worker.
            places: `places_of` the two, when they are known from an earlier update and current.
        """
        self._places = places
        self._layout = layout
        self._units = units
        self._engine = engine
        self._undo: list[_Overwritten | _Scattered | _Attributes | UnitsApplied] = []
        self._whole = UnitAssembly(units)
        self._tensors = TensorAssembly(layout.specs)
        self._for_loader: dict[int, torch.Tensor] = {}  # by tensor
        self.used_loader = False
        """Whether the engine's loader ran: what it did beyond the saved tensors is unknown to an undo."""
        self.deltas: dict[int, int] = {}
        """Fingerprint change by unit, from the old values really found in memory."""
        self.rewritten: set[int] = set()
        """Units written in full; their fingerprint must be recomputed."""

    def write(self, section: Section | PackedSections) -> None:
        """Apply one decoded section.

        Raises:
            CorruptFrameError: it does not fit the unit, or what is in memory; nothing of it is left there.
        """
        if isinstance(section, PackedSections):
            self._scatter_units(np.array(section.units), section.changes)
        elif isinstance(section, Packed):
            self._scatter_units(np.array([section.unit]), PackedUnits.one(section.changes))
        elif isinstance(section, Changes):
            device = self._engine.device
            change = to_device(section.positions, device), to_device(section.values, device)
            self._scatter(section.unit, lambda storage, box: scatter_changes(storage, box, *change))
        else:
            self._collect(section)

    def write_fills(self) -> None:
        """Repeat the constants that the engine's loader writes beside the checkpoint (vocabulary padding)."""
        for fill in self._layout.fills:
            self._save(fill.view).fill_(fill.value)

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
            elif isinstance(entry, UnitsApplied):
                entry.undo()
            else:
                undo_scatter(entry.storage, entry.applied)
        self._undo.clear()

    def _name(self, unit: int) -> str:
        names = [self._layout.specs[tensor].name for tensor in self._units[unit].tensors]
        return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"

    def _scatter_units(self, units: NDArray[np.int64], changes: PackedUnits) -> None:
        """Write changes of units, each once: in one call where their boxes only shift, else one box after another."""
        if self._places is None:
            self._places = places_of(self._layout, self._units)
        width = self._places.width[units]
        if not width.all() or width.min() != width.max():
            for i, number in enumerate(units.tolist()):
                self._scatter_packed(number, changes.unit(i))
            return
        applied = UnitsApplied(self._places, units, changes)
        self._undo.append(applied)
        if write_parts(applied, 0, len(applied.parts)):
            applied.undo()
            raise CorruptFrameError(
                f"{self._name(int(units[0]))}, or one of {units.size - 1} units after it: {MOVED_OUT}"
            )
        for number, delta in zip(units.tolist(), applied.deltas.tolist(), strict=True):
            self.deltas[number] = (self.deltas.get(number, 0) + delta) & MASK

    def _scatter_packed(self, number: int, changes: PackedChanges) -> None:
        self._scatter(number, lambda storage, box: scatter_packed(storage, box, changes))

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

    def _save(self, view: torch.Tensor) -> torch.Tensor:
        """Keep what it holds; return it as something that can be written, for parameters may require gradients."""
        view = view.detach()
        self._undo.append(_Overwritten(view, view.to("cpu", copy=True)))
        return view

    def _run_loader(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self.used_loader = True
        with torch.no_grad():
            self._engine.load_weights(weights)
            self._engine.finish_loading()
