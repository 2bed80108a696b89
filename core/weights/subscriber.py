"""The engine end of weight sync: one `Subscriber` lives in each engine worker for the life of the engine."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from operator import is_

import numpy as np
import torch

from slipstream.core.hooks import plugins
from slipstream.core.weights.assembly import TensorAssembly, UnitAssembly
from slipstream.core.weights.channel import SubscriberChannel
from slipstream.core.weights.checkpoint import table_digest
from slipstream.core.weights.conversation import State
from slipstream.core.weights.engine import Engine
from slipstream.core.weights.errors import AbortedError, SyncError, SyncTimeoutError
from slipstream.core.weights.feed import Feed, expect
from slipstream.core.weights.held import MASK, HeldUnit
from slipstream.core.weights.layout import LayoutMap
from slipstream.core.weights.messages import Applied, Audited, Begin, Commit, Done, Hello, Layout, Table, Units
from slipstream.core.weights.recorder import record_layout
from slipstream.core.weights.tensors import DTYPES, TensorSpec
from slipstream.core.weights.transaction import Transaction, places_of
from slipstream.core.weights.units import WireUnit
from slipstream.core.weights.warm_up import warm_up
from slipstream.core.weights.wire import (
    NO_BASE,
    CorruptFrameError,
    Identity,
    PackedSections,
    Range,
    Section,
    UnitTable,
    decode_frame,
    unpack_frame,
)
from slipstream.triton_kernels import Places

logger = logging.getLogger(__name__)

_Decoded = list[Section | PackedSections]
"""A frame."""
_TURN_SECONDS = 0.01
"""How long to listen to one trainer rank while others may speak as well."""


class Subscriber:
    """Holds a worker's layout and the version of the weights in its memory.

    Either an update is applied and acknowledged as a whole, or the worker keeps the weights it had: everything is
    decoded before the first write of a delta, and every write is undone unless the publishers commit. Only whether an
    element that moves (levels 1 and 2) stays in its type shows as it is written.
    """

    def __init__(self, engine: Engine, name: str, announce: bool = True) -> None:
        """Start without a version.

        Args:
            engine: the worker.
            name: of it, for logs and errors.
            announce: whether plugins hear of new versions.
        """
        self._engine = engine
        self._announce = announce
        self._name = f"{name} #{uuid.uuid4().hex[:6]}"  # two engines may call their ranks the same
        self._layout: LayoutMap | None = None
        self._table: str | None = None
        self._units: dict[int, tuple[WireUnit, ...]] = {}  # by trainer rank
        self._run: int | None = None
        self._version: int | None = None
        self._fingerprints: dict[int, list[int]] = {}  # by trainer rank, one a unit
        self._places: tuple[LayoutMap, list[WireUnit], Places] | None = None  # of the last sync
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

    def sync(self, channels: Sequence[SubscriberChannel], timeout: float) -> int:
        """Take part in one sync and return the version now held.

        Args:
            channels: one to each trainer rank that publishes.
            timeout: seconds to wait for each message.

        Raises:
            SyncError: a publisher aborted or went silent; the weights are what they were before.
            Exception: the engine's own error, after the weights were restored and the publishers told.
        """
        if self._layout is not None and not self._layout.is_current(self._engine.live_storages()):
            self.invalidate("the engine replaced or moved its parameters")
            self._layout = self._table = None
        feeds = [Feed(channel) for channel in channels]
        try:
            for feed in feeds:
                feed.send(Hello(self._name, self._run, self._version, self._table))
            for feed in feeds:
                self._meet(feed, timeout)
            assert self._layout is not None, "Begin came before any Table"
            # All have told it their units, or knew that it has them: from here on none needs to repeat them.
            self._table = table_digest(self._layout.specs, feeds[0].begin.run)
            self._agree(feeds)
        except Exception as error:
            _tell(feeds, error)
            raise
        self._update(feeds, timeout)
        target, levels = feeds[0].begin.target, {level for feed in feeds for level in feed.begin.levels}
        if self._announce:
            plugins().hook.slipstream_weights_changed(version=target)
        if levels and self._engine.device.type == "cpu":
            held = zip(self._layout.specs, self._layout.tensors, strict=True)
            warm_up({(spec.torch_dtype, DTYPES[t.dtype]) for spec, t in held if t.kind == "mapped"}, levels)
        return target

    def _meet(self, feed: Feed, timeout: float) -> None:
        """Exchange what the two do not know of each other, up to the announcement of the update."""
        message = feed.receive(timeout)
        if isinstance(message, Table):
            self._table = None  # until every publisher has told its units
            layout = self._layout
            if layout is None or message.specs != layout.specs:
                layout = self._record(message.specs)
            feed.send(Layout(layout.tensors))
            units = feed.expect(Units, timeout)
            self._units[units.sender] = units.units
            message = feed.receive(timeout)
        feed.begin = expect(message, Begin)
        if feed.begin.sender not in self._units:
            self._table = None  # makes every publisher say everything again
            raise SyncError(f"trainer rank {feed.begin.sender} never told this worker its units")
        feed.units = self._units[feed.begin.sender]

    def _agree(self, feeds: Sequence[Feed]) -> None:
        """Check that the publishers mean one update, and that it starts from what is here."""
        updates = {(feed.begin.run, feed.begin.target) for feed in feeds}
        if len(updates) != 1 or len({feed.begin.sender for feed in feeds}) != len(feeds):
            raise SyncError(f"the trainer ranks announce different updates: {[feed.begin for feed in feeds]}")
        for feed in feeds:
            begin = feed.begin
            if begin.base is not None and (begin.run, begin.base) != (self._run, self._version):
                raise SyncError(
                    f"{self._name} holds version {self._version} of run {self._run}; the update starts from version "
                    f"{begin.base} of run {begin.run}"
                )
        first = 0
        for feed in feeds:
            feed.first = first
            first += len(feed.units)

    def _record(self, specs: tuple[TensorSpec, ...]) -> LayoutMap:
        self.invalidate("new checkpoint table")
        self._units.clear()
        self._layout = layout = record_layout(
            self._engine.load_weights, specs, self._engine.transformed(), self._engine.live_storages()
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

    def _update(self, feeds: Sequence[Feed], timeout: float) -> None:
        layout = self._layout
        assert layout is not None, "Begin came before any Table"
        units = [unit for feed in feeds for unit in feed.units]
        transaction = Transaction(layout, units, self._engine, self._places_of(layout, units))
        start = time.perf_counter()
        try:
            self._write(feeds, transaction, layout, timeout)
            worked = time.perf_counter() - start - sum(feed.waited for feed in feeds)
            fingerprints = {feed.begin.sender: self._fingerprints_of(feed, transaction, layout) for feed in feeds}
            for feed in feeds:
                told = np.array(fingerprints[feed.begin.sender], "<u8").tobytes()
                feed.send(Applied(told, feed.waited, worked))
            audit = self._await_commit(feeds, timeout)
        except BaseException as error:
            self._undo(transaction)
            if isinstance(error, CorruptFrameError):
                # The checksum was right, so what it was decoded against may be wrong: only a seed heals that.
                self.invalidate("an update could not be decoded against the weights in memory")
            _tell(feeds, error)
            raise
        self._run, self._version, self._fingerprints = feeds[0].begin.run, feeds[0].begin.target, fingerprints
        self.applied += 1
        if audit:
            try:
                self._audit(feeds, timeout)
            except BaseException as error:
                self.invalidate("an audit failed half-way")
                _tell(feeds, error)
                raise

    def _places_of(self, layout: LayoutMap, units: Sequence[WireUnit]) -> Places:
        """Those of the last sync where nothing has moved, as nearly always: 20 us a box otherwise."""
        known = self._places
        if (
            known is not None
            and known[0] is layout
            and len(known[1]) == len(units)
            and all(map(is_, known[1], units))
            and known[2].is_current
        ):
            return known[2]
        self._places = layout, list(units), places_of(layout, units)
        return self._places[2]

    def _await_commit(self, feeds: Sequence[Feed], timeout: float) -> bool:
        """Wait for the verdict of the trainer ranks, which they reach together: one commit stands for all.

        A publisher that was lost right before does not undo what the others already count as done.

        Returns:
            Whether all of them go on with an audit.
        """
        # Longer than any other wait: the trainer ranks first have to agree, and the slowest may be at its limit. All
        # are listened to at once, so that a verdict that is lost on one way does not hold up the others'.
        deadline = time.monotonic() + 2 * timeout
        silent, committed = list(feeds), list[Feed]()
        failure: Exception | None = None
        audit = True
        while silent:
            for feed in list(silent):
                left = max(0.0, deadline - time.monotonic())
                patience = left if len(silent) == 1 else min(_TURN_SECONDS, left)
                try:
                    audit &= feed.expect(Commit, patience).audit
                    committed.append(feed)
                except SyncTimeoutError as error:
                    if patience < left:
                        continue
                    failure = failure or error
                except Exception as error:
                    failure = failure if isinstance(failure, AbortedError) else error
                silent.remove(feed)
                if feed in committed:
                    deadline = min(deadline, time.monotonic() + timeout)  # the others decided at the same time
                    failure = _done(feed) or failure
        if not committed:
            assert failure is not None
            raise failure
        if failure is not None:
            logger.warning("%s: committed, but one trainer rank did not confirm it: %s", self._name, failure)
        return audit and failure is None

    def _undo(self, transaction: Transaction) -> None:
        try:
            transaction.roll_back()
        except Exception as error:
            self.invalidate(f"the undo failed: {error}")
            logger.exception("%s: could not restore the weights; the next sync is a dense seed", self._name)
        if transaction.used_loader:
            self.invalidate("an update through the engine's own loader was undone")

    def _write(self, feeds: Sequence[Feed], transaction: Transaction, layout: LayoutMap, timeout: float) -> None:
        deltas = [feed for feed in feeds if feed.begin.base is not None]
        seeds = [feed for feed in feeds if feed.begin.base is None]
        decoded = list(_interleaved([self._frames(feed, layout, timeout) for feed in deltas]))
        if len(seeds) == len(feeds):
            transaction.write_fills()
        # A seed is as large as the model, so it is written as it arrives; the undo covers a failure half-way.
        for sections in _interleaved([self._frames(feed, layout, timeout) for feed in seeds]):
            for section in sections:
                transaction.write(section)
        for sections in decoded:
            for section in sections:
                transaction.write(section)
        transaction.finish()

    def _frames(self, feed: Feed, layout: LayoutMap, timeout: float) -> Iterator[_Decoded]:
        """The decoded frames of one feed, their units counted over all feeds."""
        begin, units = feed.begin, feed.units
        table = UnitTable(tuple(u.numel for u in units), tuple(u.width for u in units))
        identity = Identity(begin.run, NO_BASE if begin.base is None else begin.base, begin.target)
        held = None if begin.base is None else lambda unit: HeldUnit(units[unit], layout.storages)
        for index in range(begin.frames):
            sections = decode_frame(feed.frame(timeout), identity, index, table, held, self._engine.device)
            yield [_counted_from(feed.first, section) for section in sections]

    def _fingerprints_of(self, feed: Feed, transaction: Transaction, layout: LayoutMap) -> list[int]:
        if feed.begin.base is None or feed.begin.verify:
            return [HeldUnit(unit, layout.storages).fingerprint() for unit in feed.units]
        fingerprints = list(self._fingerprints[feed.begin.sender])
        for index, unit in enumerate(feed.units):
            if feed.first + index in transaction.rewritten:
                fingerprints[index] = HeldUnit(unit, layout.storages).fingerprint()
            else:
                fingerprints[index] = (fingerprints[index] + transaction.deltas.get(feed.first + index, 0)) & MASK
        return fingerprints

    def _audit(self, feeds: Sequence[Feed], timeout: float) -> None:
        """Load the whole checkpoint with the engine's own loader and compare checksums before and after.

        Every worker reads the trainer ranks in the same order, not as they happened to commit: what a rank broadcasts
        moves when all workers read it, so two that wait for different ranks would wait for ever.
        """
        before = self._engine.checksums()
        with torch.no_grad():
            self._engine.load_weights(self._checkpoint(feeds, timeout))
            self._engine.finish_loading()
        after = self._engine.checksums()
        different = tuple(name for name in after if before.get(name) != after[name])
        if different:
            self.invalidate("the audit loaded other weights")
        for feed in feeds:
            feed.send(Audited(len(after), different))

    def _checkpoint(self, feeds: Sequence[Feed], timeout: float) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors that the publishers send whole, in the order of the table and one at a time."""
        assert self._layout is not None
        specs = self._layout.specs
        tensors = TensorAssembly(specs)
        streams = [_whole_units(feed, feed.expect(Units, timeout).units, timeout) for feed in feeds]
        reached = [-1] * len(streams)  # the tensor that each stream is at; it has no more of the earlier ones
        ready: dict[int, torch.Tensor] = {
            index: torch.empty(spec.shape, dtype=spec.torch_dtype) for index, spec in enumerate(specs) if not spec.numel
        }
        for index, spec in enumerate(specs):
            for number, stream in enumerate(streams):
                while index not in ready and reached[number] <= index and (found := next(stream, None)) is not None:
                    unit, whole = found
                    reached[number] = unit.tensors[0]
                    if (complete := tensors.add(unit, whole)) is not None:
                        ready[complete[0]] = complete[1]
            yield spec.name, ready.pop(index).to(self._engine.device)


def _counted_from(first: int, section: Section | PackedSections) -> Section | PackedSections:
    """The section with units counted over all feeds, of which `first` come before those of its own."""
    if isinstance(section, PackedSections):
        return section._replace(units=tuple(unit + first for unit in section.units))
    return section._replace(unit=section.unit + first)


def _done(feed: Feed) -> Exception | None:
    """Confirm an update that is final; what prevented it."""
    try:
        feed.send(Done(feed.begin.target))
    except Exception as error:
        return error
    return None


def _tell(feeds: Sequence[Feed], error: BaseException) -> None:
    """Report an error to the publishers, but not to those that gave up, nor to the only one when it is not there."""
    if not (isinstance(error, SyncTimeoutError) and len(feeds) == 1):
        for feed in feeds:
            if feed.talk.state is not State.ENDED:
                feed.report(error)


def _whole_units(feed: Feed, units: tuple[WireUnit, ...], timeout: float) -> Iterator[tuple[WireUnit, torch.Tensor]]:
    """The units of one feed as their frames arrive: uint8[numel * width] each."""
    table = UnitTable(tuple(u.numel for u in units), tuple(u.width for u in units))
    identity = Identity(feed.begin.run, NO_BASE, feed.begin.target)
    assembly = UnitAssembly(units)
    left = len(units)
    index = 0
    while left:
        for section in unpack_frame(feed.frame(timeout), identity, index, table):
            assert isinstance(section, Range)
            whole = assembly.add(section)
            if whole is not None:
                left -= 1
                yield units[section.unit], whole
        index += 1


def _interleaved(streams: Sequence[Iterator[_Decoded]]) -> Iterator[_Decoded]:
    """One frame of each stream in turn, so that no publisher waits for long while another is read."""
    for frames in zip_longest(*streams):
        yield from (frame for frame in frames if frame is not None)
