"""The engine end of weight sync: one `Subscriber` lives in each engine worker for the life of the engine."""

from __future__ import annotations

import logging
import traceback
import uuid
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch

from slipstream.core.hooks import plugins
from slipstream.core.weights.channel import SubscriberChannel
from slipstream.core.weights.engine import Engine
from slipstream.core.weights.errors import AbortedError, SyncError, SyncTimeoutError
from slipstream.core.weights.held import MASK, HeldUnit
from slipstream.core.weights.layout import LayoutMap
from slipstream.core.weights.messages import (
    Abort,
    Applied,
    Audited,
    Begin,
    Commit,
    Done,
    Failed,
    Hello,
    Layout,
    Message,
    Table,
    Units,
    decode,
    encode,
)
from slipstream.core.weights.recorder import record_layout
from slipstream.core.weights.tensors import TensorSpec, digest
from slipstream.core.weights.transaction import Transaction
from slipstream.core.weights.units import WireUnit
from slipstream.core.weights.wire import NO_BASE, Identity, Range, Section, UnitTable, unpack_frame

logger = logging.getLogger(__name__)
_M = TypeVar("_M", bound=Message)


class Subscriber:
    """Holds a worker's layout and the version of the weights in its memory.

    Either an update is applied and acknowledged as a whole, or the worker keeps the weights it had: everything is
    decoded before the first write of a delta, and every write is undone unless the publisher commits.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = f"{name} #{uuid.uuid4().hex[:6]}"  # two engines may call their ranks the same
        self._layout: LayoutMap | None = None
        self._table: str | None = None
        self._units: tuple[WireUnit, ...] = ()
        self._run: int | None = None
        self._version: int | None = None
        self._fingerprints: list[int] = []
        self.applied = 0
        """Updates applied and committed since the worker started."""

    @property
    def version(self) -> int | None:
        """Committed version in memory; None when the weights are not those of any version."""
        return self._version

    def invalidate(self, reason: str) -> None:
        """Forget the version: something else wrote the weights or freed them, so the next sync must be a dense seed."""
        if self._version is not None:
            logger.info("%s: weights of version %d are gone (%s)", self._name, self._version, reason)
        self._run = self._version = None

    def sync(self, channel: SubscriberChannel, timeout: float) -> int:
        """Take part in one sync and return the version now held.

        Args:
            channel: connected to the publisher.
            timeout: seconds to wait for each message.

        Raises:
            SyncError: the publisher aborted or went silent; the weights are what they were before.
            Exception: the engine's own error, after the weights were restored and the publisher told.
        """
        if self._layout is not None and not self._layout.is_current(self._engine.live_storages()):
            self.invalidate("the engine replaced its parameters")
            self._layout = self._table = None
        channel.send(encode(Hello(self._name, self._run, self._version, self._table)))
        try:
            message = _receive(channel, timeout)
            if isinstance(message, Table):
                layout = self._record(message.specs)
                channel.send(encode(Layout(layout.tensors)))
                self._units = _expect(_receive(channel, timeout), Units).units
                self._table = digest(message.specs)  # from here on no other message needs to be repeated
                message = _receive(channel, timeout)
            begin = _expect(message, Begin)
        except Exception as error:
            _report(channel, error)
            raise
        self._update(begin, channel, timeout)
        plugins().hook.slipstream_weights_changed(version=begin.target)
        return begin.target

    def _record(self, specs: tuple[TensorSpec, ...]) -> LayoutMap:
        self.invalidate("new checkpoint table")
        self._table = None
        self._layout = layout = record_layout(
            self._engine.load_weights, specs, self._engine.transformed(), self._engine.live_storages().keys()
        )
        by_loader = [t for t in layout.tensors if t.kind == "loader"]
        if by_loader:
            logger.warning(
                "%s: %d of %d tensors always travel dense through the engine's loader, for example %s (%s)",
                self._name,
                len(by_loader),
                len(specs),
                by_loader[0].name,
                by_loader[0].reason,
            )
        return layout

    def _update(self, begin: Begin, channel: SubscriberChannel, timeout: float) -> None:
        layout = self._layout
        assert layout is not None, "Begin came before any Table"
        transaction = Transaction(layout, self._units, self._engine)
        try:
            if begin.base is not None and (begin.run, begin.base) != (self._run, self._version):
                raise SyncError(
                    f"{self._name} holds version {self._version} of run {self._run}; the update starts from version "
                    f"{begin.base} of run {begin.run}"
                )
            self._write(begin, transaction, layout, channel, timeout)
            fingerprints = self._new_fingerprints(begin, transaction, layout)
            channel.send(encode(Applied(np.array(fingerprints, "<u8").tobytes())))
            # Longer than any other wait: the trainer ranks first have to agree, and the slowest may be at its limit.
            commit = _expect(_receive(channel, 2 * timeout), Commit)
        except BaseException as error:
            self._undo(transaction)
            _report(channel, error)
            raise
        self._run, self._version, self._fingerprints = begin.run, begin.target, fingerprints
        self.applied += 1
        channel.send(encode(Done(begin.target)))
        if commit.audit_frames:
            try:
                self._audit(begin, commit.audit_frames, channel, timeout)
            except BaseException as error:
                self.invalidate("an audit failed half-way")
                _report(channel, error)
                raise

    def _undo(self, transaction: Transaction) -> None:
        try:
            transaction.roll_back()
        except Exception as error:
            self.invalidate(f"the undo failed: {error}")
            logger.exception("%s: could not restore the weights; the next sync is a dense seed", self._name)
        if transaction.used_loader:
            self.invalidate("an update through the engine's own loader was undone")

    def _write(
        self, begin: Begin, transaction: Transaction, layout: LayoutMap, channel: SubscriberChannel, timeout: float
    ) -> None:
        table = UnitTable(tuple(u.numel for u in self._units), tuple(u.width for u in self._units))
        identity = Identity(begin.run, NO_BASE if begin.base is None else begin.base, begin.target)
        held = None if begin.base is None else lambda unit: HeldUnit(self._units[unit], layout.storages)
        frames: Iterator[list[Section]] = (
            unpack_frame(_frame(channel, timeout), identity, i, table, held, begin.context) for i in range(begin.frames)
        )
        if begin.base is None:
            # A seed is as large as the model, so it is written as it arrives; the undo covers a failure half-way.
            transaction.write_fills()
        else:
            frames = iter(list(frames))
        for sections in frames:
            for section in sections:
                transaction.write(section)
        transaction.finish()

    def _new_fingerprints(self, begin: Begin, transaction: Transaction, layout: LayoutMap) -> list[int]:
        if begin.base is None or begin.verify:
            return [HeldUnit(unit, layout.storages).fingerprint() for unit in self._units]
        fingerprints = list(self._fingerprints)
        for unit, delta in transaction.deltas.items():
            fingerprints[unit] = (fingerprints[unit] + delta) & MASK
        for unit in transaction.rewritten:
            fingerprints[unit] = HeldUnit(self._units[unit], layout.storages).fingerprint()
        return fingerprints

    def _audit(self, begin: Begin, frames: int, channel: SubscriberChannel, timeout: float) -> None:
        """Load the whole checkpoint with the engine's own loader and compare checksums before and after."""
        assert self._layout is not None
        before = self._engine.checksums()
        self._engine.load_weights(self._checkpoint(begin, frames, channel, timeout))
        self._engine.finish_loading()
        after = self._engine.checksums()
        different = tuple(name for name in after if before.get(name) != after[name])
        if different:
            self.invalidate("the audit loaded other weights")
        channel.send(encode(Audited(len(after), different)))

    def _checkpoint(
        self, begin: Begin, frames: int, channel: SubscriberChannel, timeout: float
    ) -> Iterable[tuple[str, torch.Tensor]]:
        assert self._layout is not None
        specs = self._layout.specs
        table = UnitTable(tuple(s.numel for s in specs), tuple(s.torch_dtype.itemsize for s in specs))
        identity = Identity(begin.run, NO_BASE, begin.target)
        whole: torch.Tensor | None = None
        for index in range(frames):
            for section in unpack_frame(_frame(channel, timeout), identity, index, table):
                assert isinstance(section, Range)
                spec = specs[section.unit]
                width = spec.torch_dtype.itemsize
                if whole is None:
                    whole = torch.empty(spec.numel * width, dtype=torch.uint8)
                start, stop = section.first * width, (section.first + section.values.size) * width
                whole[start:stop] = torch.from_numpy(np.array(section.values).view(np.uint8))
                if stop == whole.numel():
                    yield spec.name, whole.view(spec.torch_dtype).view(spec.shape).to(self._engine.device)
                    whole = None


def _frame(channel: SubscriberChannel, timeout: float) -> bytes:
    data = channel.receive(timeout)
    if not data.startswith(b"SLPS"):
        _expect(decode(data), Begin)  # an Abort in place of a frame
    return data


def _receive(channel: SubscriberChannel, timeout: float) -> Message:
    return decode(channel.receive(timeout))


def _expect(message: Message, kind: type[_M]) -> _M:
    if isinstance(message, Abort):
        raise AbortedError(f"the trainer aborted the sync: {message.reason}")
    if not isinstance(message, kind):
        raise SyncError(f"expected {kind.__name__}, got {type(message).__name__}; both ends must run the same version")
    return message


def _report(channel: SubscriberChannel, error: BaseException) -> None:
    """Tell the publisher, unless it is the one that gave up or is not there."""
    if isinstance(error, (AbortedError, SyncTimeoutError)):
        return
    text = "".join(traceback.format_exception(error))
    channel.send(encode(Failed(f"{type(error).__name__}: {error}", text)))
