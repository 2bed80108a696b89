"""The sender's state for one layout: what of the staged update its workers get, and what they must then hold.

Where the snapshot is on an accelerator, changes are cut into units, encoded and fingerprinted there; sections, counts
and fingerprints come to the host. Memory there beside the snapshot: the changes of one tensor and of the units that
are not complete, what the codec needs (see `triton_kernels.class_codec.gpu`), and for a unit of several parts, or of a
column shard, the unit once while it is encoded at level 2.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from slipstream.core.weights.level import LevelChooser
from slipstream.core.weights.messages import Applied
from slipstream.core.weights.snapshot import TensorChanges
from slipstream.core.weights.units import Link, Source
from slipstream.core.weights.wire import Bits, Encoders, Places, range_section
from slipstream.core.weights.wire.arrays import elements, join, order
from slipstream.triton_kernels import change_fingerprint, fingerprint, put, restrict

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
        self.link = link
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
        """Take the changes of one tensor, which are in the snapshot; encode the units that it completes."""
        for source in self._of_tensor.get(tensor, ()):
            if self.units[source.unit].by_loader:
                continue
            taken, positions = restrict(changes.positions, source.box)
            if len(positions):
                part = TensorChanges(positions, changes.old[taken], changes.new[taken])
                if not source.ascends:
                    ascending = order(positions)
                    part = TensorChanges(*(array[ascending] for array in part))
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
        """[numel]: a unit as the sender holds it, where it holds it; a view where that is one contiguous range."""
        return join([self._part(source) for source in self._of_unit[unit]])

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
            changes = TensorChanges(*map(join, zip(*parts, strict=True)))
            with _UnitBefore(self, unit, changes) as old:
                self.sections.append(self._encoders[self.level].section(unit, old, changes.positions, changes.new))
            self.changes += len(changes.positions)
            self.encode_seconds += time.perf_counter() - start

    def _part(self, source: Source) -> Bits:
        box = source.from_unit
        view = self._bits(source.tensor).as_strided(box.sizes, box.dst_strides, box.dst_offset)
        return elements(view.reshape(-1))

    def _fingerprint(self, unit: int) -> int:
        total = 0
        for source in self._of_unit[unit]:
            if source.copies:
                total += source.copies * fingerprint(self._bits(source.tensor), source.from_unit)
        return total & MASK


class _UnitBefore:
    """`OldValues` of a unit whose changes are in the snapshot already.

    They are taken out of it for as long as it is encoded, which costs two writes a change; level 0
    rarely asks, and a copy of the unit would cost all of it.
    """

    copies = True  # or writes to the snapshot

    def __init__(self, link: SendingLink, unit: int, changes: TensorChanges) -> None:
        self._link, self._unit, self._changes = link, unit, changes
        self._whole: Bits | None = None

    def __enter__(self) -> _UnitBefore:
        return self

    def __exit__(self, *error: object) -> None:
        if self._whole is not None:
            put(self._whole, self._changes.positions, self._changes.new)

    @property
    def numel(self) -> int:
        return self._link.units[self._unit].numel

    @property
    def dtype(self) -> str:
        return self._link.units[self._unit].dtype

    def all(self) -> Bits:
        if self._whole is None:
            self._whole = self._link.dense(self._unit)
            put(self._whole, self._changes.positions, self._changes.old)
        return self._whole

    def at(self, positions: Places) -> Bits:
        return self._changes.old if positions is self._changes.positions else self.all()[positions]
