"""The sender's state for one layout: what of the staged update its workers get, and what they must then hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from slipstream.core.weights.level import LevelChooser
from slipstream.core.weights.messages import Applied
from slipstream.core.weights.snapshot import TensorChanges
from slipstream.core.weights.units import Link, Source
from slipstream.core.weights.wire import I64, Bits, Encoders, range_section
from slipstream.triton_kernels import as_unsigned_numpy, change_fingerprint, fingerprint, restrict

MASK = 2**64 - 1


class SendingLink:
    """Turns changes of the sender's tensors into sections of units, and carries the expected fingerprints forward."""

    def __init__(self, link: Link, bits: Callable[[int], torch.Tensor], level: int | None) -> None:
        """Start without an acknowledged version.

        Args:
            link: the units.
            bits: int[n], the flat integer bits of a tensor (by index) as the sender holds it.
            level: codec level of the sections; None chooses one for each update, by what the last ones took.
        """
        self.units = link.units
        self.level = level or 0
        """Codec level of the staged update."""
        self.changes = 0
        """Changes in its sections."""
        self.encode_seconds = 0.0
        self._fixed_level = level
        self._chooser = LevelChooser()
        self._elements = sum(unit.numel for unit in link.units)
        self._encoders: dict[int, Encoders] = {}
        self.sections: list[list[bytes]] = []
        """Finished sections of the staged update."""
        self._bits = bits
        self._of_tensor: dict[int, list[Source]] = {}
        self._of_unit: list[list[Source]] = [[] for _ in link.units]
        for source in link.sources:
            self._of_tensor.setdefault(source.tensor, []).append(source)
            self._of_unit[source.unit].append(source)
        self._collected: dict[int, list[TensorChanges]] = {}
        self._moved: dict[int, int] = {}  # unit -> how the staged update moves its fingerprint
        self._acked: list[int] | None = None
        self._expected: list[int] = []

    def begin(self, workers: int) -> None:
        """A delta for so many workers is about to be staged."""
        self.level = self._chooser.choose(self._elements, workers) if self._fixed_level is None else self._fixed_level
        if self.level not in self._encoders:
            self._encoders[self.level] = Encoders(self.level)

    def observe(self, sent: int, timing: Applied, seed: bool) -> None:
        """What a worker says of the `sent` bytes of an update that it was sent."""
        self._chooser.observe_link(sent, timing.wait_seconds)
        if not seed:
            seconds = self.encode_seconds + timing.work_seconds
            # What travels in full for the engine's loader says nothing about a codec, nor does the time of that loader.
            coded = 0 if any(unit.by_loader for unit in self.units) else sent
            self._chooser.observe_codec(self.level, self._elements, self.changes, coded, seconds)

    def stage(self, tensor: int, changes: TensorChanges) -> None:
        """Take the changes of one tensor, while the snapshot still holds the old one; encode the units it completes."""
        for source in self._of_tensor.get(tensor, ()):
            if self.units[source.unit].by_loader:
                continue
            taken, positions = restrict(changes.positions, source.box)
            if positions.size:
                part = TensorChanges(positions, changes.old[taken], changes.new[taken])
                if not source.ascends:
                    order = np.argsort(positions)
                    part = TensorChanges(*(array[order] for array in part))
                self._collected.setdefault(source.unit, []).append(part)
                moved = source.copies * change_fingerprint(*part)
                self._moved[source.unit] = (self._moved.get(source.unit, 0) + moved) & MASK
            if source is self._of_unit[source.unit][-1]:
                self._encode(source.unit)

    def finish(self) -> None:
        """Add the tensors of the engine's own loader, after the last `stage` and with the snapshot written.

        What the loader makes of a change is unknown here, so they always travel whole.
        """
        if self.level in self._encoders:
            self._encoders[self.level].finish()
        for index, unit in enumerate(self.units):
            if unit.by_loader:
                self.sections.append(range_section(index, 0, self.dense(index)))

    def dense(self, unit: int) -> Bits:
        """unsigned[numel]: a unit as the sender holds it; a view where that is one contiguous range."""
        sources = self._of_unit[unit]
        parts = [self._part(source) for source in sources]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def expected(self, whole: bool) -> list[int]:
        """Fingerprints that a worker must report for the staged update.

        Args:
            whole: the snapshot was filled anew, so nothing can be carried forward.
        """
        if whole or self._acked is None:
            self._expected = [self._fingerprint(unit) for unit in range(len(self.units))]
        else:
            self._expected = [(f + self._moved.get(unit, 0)) & MASK for unit, f in enumerate(self._acked)]
        return self._expected

    @property
    def pending_fingerprints(self) -> list[int]:
        """What `expected` returned last."""
        return self._expected

    def commit(self) -> None:
        """The staged update is the base now."""
        self._acked = self._expected
        self.discard()

    def discard(self) -> None:
        """Forget the staged update."""
        self.sections = []
        self.changes, self.encode_seconds = 0, 0.0
        self._collected.clear()
        self._moved.clear()

    def _encode(self, unit: int) -> None:
        parts = self._collected.pop(unit, [])
        if parts:
            start = time.perf_counter()
            changes = parts[0] if len(parts) == 1 else TensorChanges(*map(np.concatenate, zip(*parts, strict=True)))
            old = _UnitBefore(self, unit, changes)
            self.sections.append(self._encoders[self.level].section(unit, old, changes.positions, changes.new))
            self.changes += changes.positions.size
            self.encode_seconds += time.perf_counter() - start

    def _part(self, source: Source) -> Bits:
        bits = self._bits(source.tensor).cpu()
        box = source.from_unit
        return as_unsigned_numpy(bits.as_strided(box.sizes, box.dst_strides, box.dst_offset).reshape(-1))

    def _fingerprint(self, unit: int) -> int:
        total = 0
        for source in self._of_unit[unit]:
            if source.copies:
                total += source.copies * fingerprint(self._bits(source.tensor), source.from_unit)
        return total & MASK


class _UnitBefore(NamedTuple):
    """`OldValues` of a unit while its update is staged."""

    link: SendingLink
    unit: int
    changes: TensorChanges

    @property
    def numel(self) -> int:
        return self.link.units[self.unit].numel

    @property
    def dtype(self) -> str:
        return self.link.units[self.unit].dtype

    def all(self) -> Bits:
        whole = self.link.dense(self.unit)
        if len(self.link.units[self.unit].tensors) > 1:  # the earlier ones are already new in the snapshot
            whole[self.changes.positions] = self.changes.old
        return whole

    def at(self, positions: I64) -> Bits:
        if positions is self.changes.positions:
            return self.changes.old
        return self.all()[positions]
