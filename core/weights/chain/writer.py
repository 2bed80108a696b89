"""The trainer's end of a chain."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from slipstream.core.weights.chain.errors import ChainError
from slipstream.core.weights.chain.manifest import FORMAT, ChainTable, Head, Step, StepHeader, step_name
from slipstream.core.weights.chain.store import ChainStore
from slipstream.core.weights.chunks import change_chunks, range_chunks
from slipstream.core.weights.delivery import Chunk
from slipstream.core.weights.layout import Piece, TensorLayout
from slipstream.core.weights.sending import SendingLink
from slipstream.core.weights.snapshot import Snapshot
from slipstream.core.weights.tensors import TensorSpec, dtype_name
from slipstream.core.weights.trainer_shards import whole_tensors
from slipstream.core.weights.units import link_units
from slipstream.core.weights.wire import NO_BASE, Identity, pack_frame
from slipstream.triton_kernels import Box

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChainReport:
    """What one version added."""

    version: int
    changed_elements: int
    total_elements: int
    delta_bytes: int
    """0 for the first version."""
    anchor_bytes: int
    """0 where no anchor was due."""


class ChainWriter:
    """Publishes versions of a checkpoint as files; nobody has to be listening."""

    def __init__(
        self,
        url: str,
        *,
        dtype: torch.dtype | None = None,
        level: int = 0,
        anchor_every: int = 50,
        keep_anchors: int = 2,
        chunk_bytes: int = 64 << 20,
    ) -> None:
        """Start a chain; one that another writer left at `url` is replaced by the first version.

        Args:
            url: of a folder, as fsspec takes it.
            dtype: of floating-point tensors in the chain, as engines hold them; None keeps the trainer's.
            level: codec level of the deltas. Engines that hold shards of a tensor need 0.
            anchor_every: versions between two anchors (full copies).
            keep_anchors: how many stay, with every delta since the oldest of them.
            chunk_bytes: bytes a frame.

        Raises:
            ValueError: a number that cannot be.
        """
        if anchor_every < 1 or keep_anchors < 1:
            raise ValueError(
                f"expected at least 1 for anchor_every and keep_anchors, got {anchor_every}, {keep_anchors}"
            )
        self._store = ChainStore(url)
        self._dtype, self._level = dtype, level
        self._anchor_every, self._keep_anchors, self._chunk_bytes = anchor_every, keep_anchors, chunk_bytes
        self._run = 0
        self._offered = 0  # the last version of this run that readers may have seen, be it that its head failed
        self._specs: tuple[TensorSpec, ...] = ()
        self._snapshot = Snapshot(keep_on_device=False)
        self._link: SendingLink | None = None
        self._head: Head | None = None
        self._doomed: list[str] = []  # no longer named since the last version; readers may still be at them

    def publish(self, weights: Iterable[tuple[str, torch.Tensor]]) -> ChainReport:
        """Add a version: a delta, and an anchor when one is due.

        Args:
            weights: (name, full tensor), the same names, shapes and dtypes every time.

        Raises:
            ChainError: the checkpoint changed, or another writer has taken over.
            TypeError: a dtype cannot travel.
        """
        found = self._store.head()
        if self._head is not None and found is None:
            logger.warning("the chain at %s is gone: it starts again, with a full copy", self._store.url)
            self._head = None
        if self._head is None:
            return self._begin(weights, found)
        if found is not None and found.run != self._head.run:
            raise ChainError(
                f"another writer has replaced the chain at {self._store.url}; write to a place of your own"
            )
        return self._extend(weights, self._head)

    def _begin(self, weights: Iterable[tuple[str, torch.Tensor]], found: Head | None) -> ChainReport:
        self._run, self._offered = secrets.randbits(63), 1
        self._snapshot = Snapshot(keep_on_device=False)
        specs, elements = [], 0
        for index, (name, tensor) in enumerate(weights):
            value = self._cast(tensor)
            specs.append(TensorSpec(name, tuple(value.shape), dtype_name(value.dtype, name)))
            self._snapshot.store(index, value)
            elements += value.numel()
        if len({spec.name for spec in specs}) != len(specs):
            raise ChainError("duplicate tensor names in the checkpoint; each name must appear once")
        self._specs = tuple(specs)
        layouts = [
            TensorLayout(spec.name, spec.dtype, "mapped", (Piece.of(index, Box.identity(spec.numel)),))
            for index, spec in enumerate(specs)
        ]
        # A unit for each tensor, so that a reader which holds some of them can check those.
        link = link_units(specs, layouts, whole_tensors(specs, self._run).senders, rank=0, small=0)
        self._link = SendingLink(link, self._snapshot.bits, self._level)
        self._link.expected(whole=True)
        table = ChainTable(self._specs, link.units, self._level)
        self._store.write_table(table)
        anchor = self._write_anchor(self._link, 1)
        if found is not None:
            self._doomed += [step.file for step in found.steps] + [found.table] * (found.table != table.name)
        head = Head(FORMAT, self._run, table.name, (anchor,))
        try:
            self._store.write_head(head)
        except BaseException:
            self._doomed.append(anchor.file)
            raise
        self._link.commit()
        self._head = head
        return ChainReport(1, elements, elements, 0, anchor.bytes)

    def _extend(self, weights: Iterable[tuple[str, torch.Tensor]], head: Head) -> ChainReport:
        link = self._link
        assert link is not None
        target = self._offered + 1
        changed = count = 0
        steps: list[Step] = []
        link.begin(1)
        try:
            for index, (name, tensor) in enumerate(weights):
                value = self._cast(tensor)
                self._check(index, TensorSpec(name, tuple(value.shape), dtype_name(value.dtype, name)))
                changes = self._snapshot.advance(index, value)
                link.stage(index, changes)
                changed += len(changes.positions)
                count += 1
            if count != len(self._specs):
                raise ChainError(f"{count} tensors came, {len(self._specs)} were expected")
            link.finish()
            link.expected(whole=False)
            steps.append(self._write(link, head.version, target, change_chunks(link.sections, self._chunk_bytes)))
            if self._anchor_is_due(head):
                steps.append(self._write_anchor(link, target))
            kept, dropped = self._retained((*head.steps, *steps))
            new = Head(FORMAT, self._run, head.table, kept)
            # An object store may have taken a head although its answer was lost: this number is never given again.
            self._offered = target
            self._store.write_head(new)
        except BaseException:
            self._snapshot.roll_back()
            link.discard()
            if self._offered == target:
                self._doomed += [step.file for step in steps]
            raise
        self._snapshot.commit()
        link.commit()
        self._head = new
        self._store.remove(self._doomed)  # a reader had one version's time to leave them
        self._doomed = dropped
        total = sum(spec.numel for spec in self._specs)
        return ChainReport(target, changed, total, steps[0].bytes, steps[1].bytes if len(steps) > 1 else 0)

    def _anchor_is_due(self, head: Head) -> bool:
        newest = max(step.target for step in head.steps if step.base is None)
        return sum(step.target > newest for step in head.steps) + 1 >= self._anchor_every

    def _retained(self, steps: tuple[Step, ...]) -> tuple[tuple[Step, ...], list[str]]:
        anchors = [step.target for step in steps if step.base is None]
        oldest = anchors[-self._keep_anchors :][0]
        kept = tuple(s for s in steps if s.target > oldest or (s.target == oldest and s.base is None))
        return kept, [step.file for step in steps if step not in kept]

    def _write_anchor(self, link: SendingLink, target: int) -> Step:
        arrays = [(index, unit.numel, unit.width) for index, unit in enumerate(link.units)]
        return self._write(link, None, target, range_chunks(arrays, link.dense, self._chunk_bytes))

    def _write(self, link: SendingLink, base: int | None, target: int, chunks: list[Chunk]) -> Step:
        identity = Identity(self._run, NO_BASE if base is None else base, target)
        fingerprints = np.array(link.pending_fingerprints, "<u8").tobytes()
        header = StepHeader(self._run, base, target, len(chunks), fingerprints)

        def frames() -> Iterator[bytes]:
            for index, chunk in enumerate(chunks):
                yield pack_frame(identity, index, chunk())

        name = step_name(self._run, base, target)
        return Step(base, target, name, self._store.write_step(name, header, frames()))

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._dtype) if self._dtype is not None and tensor.is_floating_point() else tensor

    def _check(self, index: int, spec: TensorSpec) -> None:
        known = self._specs[index] if index < len(self._specs) else None
        if spec != known:
            raise ChainError(f"the checkpoint changed: tensor {index} is {spec}, it was {known}; start a new chain")
