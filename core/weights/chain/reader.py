"""An engine's end of a chain."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import torch

from slipstream.core.hooks import plugins
from slipstream.core.weights.chain.errors import ChainError
from slipstream.core.weights.chain.manifest import ChainTable, Step
from slipstream.core.weights.chain.store import ChainStore
from slipstream.core.weights.engine import Engine
from slipstream.core.weights.errors import FingerprintMismatchError
from slipstream.core.weights.held import MASK, HeldUnit
from slipstream.core.weights.layout import LayoutMap, Piece
from slipstream.core.weights.recorder import record_layout
from slipstream.core.weights.transaction import Transaction
from slipstream.core.weights.units import WireUnit
from slipstream.core.weights.wire import NO_BASE, CorruptFrameError, Identity, Section, UnitTable, unpack_frame
from slipstream.triton_kernels import Box, as_bits, normalise

logger = logging.getLogger(__name__)


class ChainReader:
    """Brings one engine worker to the newest version of a chain, step by step; each step is applied whole or not."""

    def __init__(self, url: str, engine: Engine) -> None:
        """Point an engine worker to a chain; nothing is read before `update`.

        Args:
            url: of a folder, as fsspec takes it.
            engine: the worker; it may hold shards.
        """
        self._store = ChainStore(url)
        self._engine = engine
        self._table: str | None = None
        self._held: tuple[int, int] | None = None  # run, version
        self._layout: LayoutMap | None = None
        self._units: tuple[WireUnit, ...] = ()
        self._whole: list[bool] = []  # by unit: this worker holds all of it
        self._for_loader: dict[int, torch.Tensor] = {}  # tensor -> flat bits kept beside the engine, for its loader
        self._fingerprints: list[int] = []

    @property
    def url(self) -> str:
        """Of the chain."""
        return self._store.url

    @property
    def version(self) -> int | None:
        """Version in memory; None when the weights are not those of any."""
        return None if self._held is None else self._held[1]

    def invalidate(self) -> None:
        """Forget the version: something else wrote the weights; the next update starts with an anchor."""
        self._held = None

    def update(self) -> int | None:
        """Go to the newest version; return it, or None when nothing was published yet.

        Raises:
            ChainError: the chain is damaged or of no use to this engine. The weights are those of the last step that
                was applied; `version` says which.
            FingerprintMismatchError: the weights in memory were not those of that version; the next update starts
                with an anchor.
            Exception: the engine's own error, after its weights were restored.
        """
        head = self._store.head()
        if head is None:
            return None
        if (
            self._layout is None
            or head.table != self._table
            or not self._layout.is_current(self._engine.live_storages())
        ):
            self._prepare(head.table)
        held = self._held[1] if self._held is not None and self._held[0] == head.run else None
        for step in head.path(held):
            self._apply(head.run, step)
            logger.debug("version %d from %s", step.target, step.file)
        return self.version

    def _prepare(self, name: str) -> None:
        self._held, self._table = None, None
        table = self._store.table(name)
        layout = record_layout(
            self._engine.load_weights, table.specs, self._engine.transformed(), self._engine.live_storages()
        )
        self._for_loader.clear()
        pieces = [self._pieces(index, table, layout) for index in range(len(table.specs))]
        self._units = tuple(_mapped(unit, pieces) for unit in table.units)
        self._whole = [_covers_all(unit) for unit in self._units]
        if table.level and not all(self._whole):
            raise ChainError(
                f"the chain at {self._store.url} has deltas of codec level {table.level}, which only engines that hold "
                "whole tensors can decode; write it with level=0 for sharded engines"
            )
        self._layout, self._table = layout, name

    def _pieces(self, tensor: int, table: ChainTable, layout: LayoutMap) -> tuple[Piece, ...]:
        """Where the elements of a tensor go: into engine memory, or into a copy of ours where that will not do."""
        spec, held = table.specs[tensor], layout.tensors[tensor]
        if held.kind == "mapped" and held.dtype == spec.dtype:
            return held.pieces
        if held.kind == "unused" and not table.level:
            return ()
        # The engine's loader transforms it, or nobody takes it but its changes are coded against its old values.
        copy = as_bits(torch.empty(spec.numel, dtype=spec.torch_dtype, device=self._engine.device))
        layout.storages.append(copy)
        if held.kind != "unused":
            self._for_loader[tensor] = copy
        return (Piece.of(len(layout.storages) - 1, Box.identity(spec.numel)),)

    def _apply(self, run: int, step: Step) -> None:
        layout = self._layout
        assert layout is not None
        transaction = Transaction(layout, self._units, self._engine)
        try:
            with self._store.step(step.file) as (header, frames):
                if (header.run, header.base, header.target) != (run, step.base, step.target):
                    raise ChainError(f"{step.file} is not the step that the head of the chain says it is")
                if step.base is None:
                    transaction.write_fills()
                self._write(transaction, run, step, frames)
            transaction.finish()
            self._load(transaction)
            fingerprints = self._new_fingerprints(transaction, step)
            self._compare(np.frombuffer(header.fingerprints, "<u8"), fingerprints, step)
        except BaseException as error:
            transaction.roll_back()
            if transaction.used_loader or isinstance(error, (CorruptFrameError, FingerprintMismatchError)):
                self.invalidate()
            raise
        self._held, self._fingerprints = (run, step.target), fingerprints
        plugins().hook.slipstream_weights_changed(version=step.target)

    def _write(self, transaction: Transaction, run: int, step: Step, frames: Iterator[bytes]) -> None:
        table = UnitTable(tuple(u.numel for u in self._units), tuple(u.width for u in self._units))
        identity = Identity(run, NO_BASE if step.base is None else step.base, step.target)
        assert self._layout is not None
        storages = self._layout.storages
        decoded: Iterator[list[Section]] = (
            unpack_frame(
                frame, identity, index, table, lambda unit: HeldUnit(self._units[unit], storages), self._engine.device
            )
            for index, frame in enumerate(frames)
        )
        for sections in decoded if step.base is None else list(decoded):
            for section in sections:
                transaction.write(section)

    def _load(self, transaction: Transaction) -> None:
        """Give the engine's loader the tensors it transforms: all when one changed, as it may put several together."""
        assert self._layout is not None
        touched = transaction.rewritten | set(transaction.deltas)
        if self._for_loader.keys().isdisjoint(tensor for unit in touched for tensor in self._units[unit].tensors):
            return
        specs, device = self._layout.specs, self._engine.device
        transaction.load(
            [
                (specs[t].name, copy.view(specs[t].torch_dtype).view(specs[t].shape).to(device))
                for t, copy in sorted(self._for_loader.items())
            ]
        )

    def _new_fingerprints(self, transaction: Transaction, step: Step) -> list[int]:
        assert self._layout is not None
        storages = self._layout.storages
        if step.base is None:
            return [HeldUnit(unit, storages).fingerprint() for unit in self._units]
        fingerprints = list(self._fingerprints)
        for unit, delta in transaction.deltas.items():
            fingerprints[unit] = (fingerprints[unit] + delta) & MASK
        for unit in transaction.rewritten:
            fingerprints[unit] = HeldUnit(self._units[unit], storages).fingerprint()
        return fingerprints

    def _compare(self, told: np.ndarray, held: list[int], step: Step) -> None:
        """Check the units that this worker holds whole and once; of the others it cannot know the fingerprint."""
        if told.size != len(held):
            raise ChainError(f"{step.file} has {told.size} fingerprints for {len(held)} units")
        wrong = [u for u, whole in enumerate(self._whole) if whole and int(told[u]) != held[u]]
        if wrong:
            assert self._layout is not None
            names = [self._layout.specs[t].name for u in wrong[:3] for t in self._units[u].tensors][:8]
            raise FingerprintMismatchError(
                f"after {step.file} {len(wrong)} of {len(held)} units hold other bits than were published, the first "
                f"with {', '.join(names)}: something else writes these weights. They were restored."
            )


def _mapped(unit: WireUnit, pieces: list[tuple[Piece, ...]]) -> WireUnit:
    """The unit with this worker's places instead of the checkpoint's tensors."""
    places = []
    for part in unit.pieces:
        start = part.as_box().src_offset  # parts are whole tensors, so the rest of the box is known
        for piece in pieces[part.storage]:
            box = piece.as_box()
            places.append(Piece.of(piece.storage, normalise(box._replace(src_offset=box.src_offset + start))))
    return WireUnit(unit.dtype, unit.numel, unit.tensors, tuple(places))


def _covers_all(unit: WireUnit) -> bool:
    """Whether the places hold every element once (each place is one piece without gaps, and they add up)."""
    boxes = sorted((piece.as_box() for piece in unit.pieces), key=lambda box: box.src_offset)
    end = 0
    for box in boxes:
        if box.src_offset != end or box.span != box.numel:
            return False
        end += box.numel
    return end == unit.numel
