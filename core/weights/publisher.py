"""The trainer end of weight sync: one `Publisher` for each stream of weights, for the life of the run."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping

import torch

from slipstream.core.weights.catch_up import link_since
from slipstream.core.weights.channel import PublisherChannel
from slipstream.core.weights.checkpoint import Checkpoint, merge_layouts
from slipstream.core.weights.chunks import change_chunks, range_chunks
from slipstream.core.weights.delivery import Chunk, Delivery, Peer
from slipstream.core.weights.errors import FingerprintMismatchError, LayoutChangedError, SyncError
from slipstream.core.weights.history import History
from slipstream.core.weights.layout import TensorLayout
from slipstream.core.weights.level import LEVELS
from slipstream.core.weights.messages import Abort, Begin, decode, encode
from slipstream.core.weights.roster import Roster, WorkerLayout
from slipstream.core.weights.sending import SendingLink
from slipstream.core.weights.snapshot import Snapshot
from slipstream.core.weights.tensors import TensorSpec
from slipstream.core.weights.trainer_shards import TrainerShards, whole_tensors
from slipstream.core.weights.units import link_units
from slipstream.core.weights.update import PublisherSettings, SyncReport, Update
from slipstream.core.weights.warm_up import warm_up
from slipstream.core.weights.wire import NO_BASE, Identity
from slipstream.triton_kernels import as_bits

logger = logging.getLogger(__name__)

_REFUSE_SECONDS = 5.0
Agree = Callable[[bool], bool]
"""Whether every trainer rank is ready, given whether this one is; a collective where there are several ranks."""


class Publisher:
    """Stages weights, delivers them to engine workers, and advances its snapshot only when all hold the result."""

    def __init__(self, settings: PublisherSettings, shards: TrainerShards | None = None) -> None:
        """Start without an acknowledged version.

        Args:
            settings: options.
            shards: how this rank and its peers hold the checkpoint; None when this publisher is given whole tensors
                and is the only one that its workers connect to.
        """
        self._settings = settings
        self.run = secrets.randbits(63) if shards is None else shards.run
        self._sharded = shards is not None
        self._shards = shards or whole_tensors((), self.run)
        self._attempts = 0
        self._staged: Update | None = None  # what `deliver` takes next
        self._acked: int | None = None
        self._warned = False
        self._table = Checkpoint(self._shards.specs, self.run)
        self._snapshot = Snapshot(settings.keep_on_device)
        self._history = History()
        self._roster = Roster()
        self._links: dict[str, SendingLink] = {}  # by layout digest

    @property
    def acked(self) -> int | None:
        """Version that every worker acknowledged last; None before the first seed."""
        return self._acked

    def acknowledged(self) -> list[tuple[str, torch.Tensor]]:
        """(checkpoint name, tensor) of what the engines take, as they acknowledged it last: views of the snapshot, on
        the host or the trainer's device, which are right until the next `stage`.

        Raises:
            SyncError: nothing is acknowledged, or this publisher holds shards.
        """
        if self._acked is None or self._sharded:
            raise SyncError("expected a publisher of whole tensors with an acknowledged version")
        table = self._table
        return [
            (spec.name, self._snapshot.bits(index).view(table.dtypes[index]).view(spec.shape))
            for index, spec in enumerate(table.specs)
            if table.kinds[index] != "unused"
        ]

    def stage(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Update:
        """Consume the trainer's weights and work out what has to travel.

        Args:
            weights: (checkpoint name, full tensor) in a fixed order; with `TrainerShards`, (checkpoint name, this
                rank's flat local tensor) for each tensor it holds, in the order of the table. Always consumed to the
                end: items may be collectives, so stopping early would hang the other ranks.

        Raises:
            SyncError: the names, shapes or dtypes are not those of the previous sync. The next sync is a dense seed.
            TypeError: a dtype cannot travel.
        """
        start = time.perf_counter()
        self._discard()  # an update that was staged and never delivered
        self._attempts += 1
        seed = self._acked is None or self._settings.dense
        audit = self._settings.audit_every > 0 and self._attempts % self._settings.audit_every == 0
        update = Update(self._attempts, self._table, seed, audit=audit)
        if seed:
            self._history.clear()
        else:
            assert self._acked is not None
            self._history.begin(self._acked, int(self._settings.history_share * self._shards.held_bytes()))
            update.layouts = frozenset(self._links)
            for link in self._links.values():
                link.begin(len(self._roster))
        specs: list[TensorSpec] = []
        held = self._shards.held()
        failure: Exception | None = None
        for position, (name, tensor) in enumerate(weights):
            if failure is not None:
                continue
            try:
                specs.append(TensorSpec.of(name, tensor))
                index = held[position] if self._sharded and position < len(held) else position
                if self._sharded:
                    self._check_local(index, specs[-1])
                elif not seed:
                    update.table.check(index, specs[-1])
                if seed or audit:
                    update.raw[index] = tensor.detach().to("cpu", copy=True)
                if not seed:
                    self._stage_changes(update, index, tensor)
            except Exception as error:
                failure = error
        if failure is None and (self._sharded or not seed) and len(specs) != len(held):
            failure = SyncError(f"{len(specs)} tensors came, {len(held)} were expected")
        if failure is not None:
            self._forget()
            raise failure
        if not seed:
            for link in self._links.values():
                link.finish()
        elif not self._sharded and tuple(specs) != update.table.specs:
            self._roster.clear()
            self._links.clear()
            self._warned = False
            self._shards = whole_tensors(specs, self.run)
            self._table = update.table = Checkpoint(self._shards.specs, self.run)
        update.seconds = time.perf_counter() - start
        self._staged = update
        return update

    def deliver(
        self, update: Update, channel: PublisherChannel, workers: int, agree: Agree = lambda ready: ready
    ) -> SyncReport:
        """Send a staged update to `workers` engine workers and wait for their acknowledgements.

        Args:
            update: from `stage`.
            channel: the workers connect to it.
            workers: how many.
            agree: collective over the trainer ranks that deliver at the same time; called exactly once, whatever
                happens.

        Raises:
            EngineFailedError: a worker reported an error; the message is the engine's own.
            FingerprintMismatchError, AuditMismatchError, SyncTimeoutError, SyncError: as their names say.
            Exception: what the channel was failed with.
            In every case but AuditMismatchError and UncertainCommitError the workers keep their old weights and the
            snapshot its version; after those two, a FingerprintMismatchError and a LayoutChangedError the next sync is
            a dense seed where it has to be.
        """
        start = time.perf_counter()
        delivery = Delivery(channel, update.table, self._settings.timeout, self._shards.rank)
        try:
            if update is not self._staged:
                raise SyncError(
                    "this update was already delivered, or others were staged since; stage the weights again"
                )
            self._staged = None
            delivery.handshake(workers, self._roster, lambda layout: self._link(layout).units)
            self._adopt(update, delivery)
            self._links = {digest: link for digest, link in self._links.items() if digest in self._roster.digests()}
            used = {layout.digest: self._link(layout) for layout in delivery.layouts().values()}
            bases = {address: self._base(update, peer) for address, peer in delivery.peers.items()}
            groups = delivery.groups(bases)
            payload = self._send(update, delivery, groups)
            delivery.confirm(
                {digest: link.expected(update.seed) for digest, link in used.items()},
                {digest: link.units for digest, link in used.items()},
            )
            apply_seconds = 0.0
            for (digest, base), group in groups.items():
                for address in group:
                    timing = delivery.peers[address].applied
                    assert timing is not None
                    apply_seconds = max(apply_seconds, timing.work_seconds)
                    used[digest].observe(delivery.sent[digest, base], timing, base != self._acked or update.seed)
        except BaseException as error:
            try:
                reseed = isinstance(error, LayoutChangedError)
                self._give_up(update, delivery, f"{type(error).__name__}: {error}", reseed)
                if reseed or isinstance(error, FingerprintMismatchError):
                    self._acked = None  # the cause is older than this update: only a seed heals it
            finally:
                agree(False)
            raise
        try:
            if not agree(True):
                raise SyncError(
                    "another trainer rank could not deliver its weights; its own error says why. All engines keep "
                    "their old weights."
                )
        except BaseException as error:
            self._give_up(update, delivery, str(error))
            raise
        level = max((link.level for link in used.values()), default=0)
        acked = self._acked
        self._snapshot.commit()
        self._history.commit()
        self._acked, self._links = update.target, used
        for link in used.values():
            link.commit()
        audit = self._audit_link(update)
        delivery.commit(audit is not None)
        delivered = time.perf_counter()
        audited = self._audit(update, audit, delivery)
        if update.seed and not self._settings.keep_on_device:
            self._warm_up()
        return SyncReport(
            run=self.run,
            base=None if update.seed else acked,
            target=update.target,
            stage_seconds=update.seconds,
            deliver_seconds=delivered - start,
            payload_bytes=payload,
            dense_bytes=self._shards.held_bytes() * workers,
            changed_elements=update.changed,
            total_elements=self._shards.held_elements(),
            tensors=len(update.table.specs),
            workers=workers,
            seeded_workers=sum(base is None for base in bases.values()),
            level=level,
            unverified_tensors=update.table.kinds.count("loader"),
            audit_seconds=time.perf_counter() - delivered,
            audited_tensors=audited,
            late_workers=sum(base not in (None, acked) for base in bases.values()),
            apply_seconds=apply_seconds,
            layers=update.layers,
        )

    def refuse(self, channel: PublisherChannel, workers: int, reason: str) -> None:
        """Send `workers` engine workers that already wait for a sync back to work, when staging has failed."""
        for _ in range(workers):
            try:
                peer, data = channel.receive(_REFUSE_SECONDS)
                channel.send(peer, encode(Abort(reason), decode(data)[1]))
            except Exception as error:
                logger.debug("no worker to refuse: %s", error)
                return

    def sync(self, weights: Iterable[tuple[str, torch.Tensor]], channel: PublisherChannel, workers: int) -> SyncReport:
        """`stage` and `deliver` in one call."""
        return self.deliver(self.stage(weights), channel, workers)

    def _stage_changes(self, update: Update, index: int, tensor: torch.Tensor) -> None:
        table = update.table
        if table.kinds[index] == "unused":
            return
        changes = self._snapshot.advance(index, tensor, table.dtypes[index])
        update.count(table.specs[index].name, len(changes.positions), tensor.numel())
        self._history.record(index, changes, tensor.numel())
        for link in self._links.values():
            link.stage(index, changes)

    def _link(self, layout: WorkerLayout) -> SendingLink:
        if layout.digest not in self._links:
            self._links[layout.digest] = self._new_link(layout.tensors, self._snapshot.bits)
        return self._links[layout.digest]

    def _new_link(self, layouts: tuple[TensorLayout, ...], bits: Callable[[int], torch.Tensor]) -> SendingLink:
        link = link_units(self._shards.specs, layouts, self._shards.senders, self._shards.rank)
        return SendingLink(link, bits, self._settings.level)

    def _check_local(self, index: int, spec: TensorSpec) -> None:
        """Refuse a local tensor that is not the one the shard maps describe."""
        known = self._shards.specs[index] if index < len(self._shards.specs) else None
        boxes = self._shards.senders[self._shards.rank].get(spec.name, ())
        numel = sum(box.numel for box in boxes)
        if known is None or (spec.name, spec.dtype, spec.numel) != (known.name, known.dtype, numel):
            raise SyncError(
                f"expected {numel} elements of {known}, got {spec}: the trainer's shards are not those that its ranks "
                "told each other"
            )

    def _adopt(self, update: Update, delivery: Delivery) -> None:
        """Take over how the engines hold the tensors, or check that it is what the update was staged for."""
        merged = merge_layouts(update.table.specs, delivery.layouts().values())
        if update.seed:
            update.table.adopt(merged)
            self._fill_snapshot(update)
        elif not update.table.agrees(merged):
            raise LayoutChangedError(
                "the engine workers take other tensors, or in other dtypes, than those the weights were staged for; "
                "the next sync is a dense seed for the workers that are there now"
            )

    def _fill_snapshot(self, update: Update) -> None:
        if not self._warned:
            self._warned = True
            self._warn_of_ignored(update)
        for index in list(update.raw):
            value = update.raw[index] if update.audit else update.raw.pop(index)
            if update.table.kinds[index] != "unused":
                self._snapshot.store(index, value.to(update.table.dtypes[index]), owned=True)
                update.changed += value.numel()

    def _warn_of_ignored(self, update: Update) -> None:
        """Name tensors that no engine worker takes, unless they repeat one that is taken (tied heads do)."""
        kinds, specs = update.table.kinds, update.table.specs
        taken = [value for index, value in update.raw.items() if kinds[index] != "unused"]
        ignored = [
            specs[index].name
            for index, value in update.raw.items()
            if kinds[index] == "unused" and not any(_same(value, other) for other in taken)
        ]
        if ignored:
            logger.warning(
                "the engine's loader ignores %d of %d tensors that the trainer sends, for example %s",
                len(ignored),
                len(specs),
                ignored[:3],
            )

    def _base(self, update: Update, peer: Peer) -> int | None:
        """The version that what a worker is sent starts from; None for a seed."""
        held = peer.hello
        if update.seed or held.run != self.run:
            return None
        current = held.version == self._acked and peer.layout is not None and peer.layout.digest in update.layouts
        return held.version if current or self._history.reaches(held.version) else None

    def _send(self, update: Update, delivery: Delivery, groups: Mapping[tuple[str, int | None], list[bytes]]) -> int:
        verify = self._settings.verify_every > 0 and self._attempts % self._settings.verify_every == 0
        parts = {}
        for (digest, base), group in groups.items():
            chunks = self._chunks(update, digest, base)
            levels = self._levels() if base is None else ()
            begin = Begin(self.run, base, update.target, len(chunks), verify, self._shards.rank, levels)
            delivery.announce(group, begin)
            parts[digest, base] = self._identity(base, update.target), chunks
        sent = 0
        for (digest, base), group in groups.items():
            size = delivery.send_update(group, *parts[digest, base])
            delivery.sent[digest, base] = size // len(group)
            sent += size
        return sent

    def _chunks(self, update: Update, digest: str, base: int | None) -> list[Chunk]:
        link = self._links[digest]
        if base is None:
            return self._seed_chunks(link)
        if base != self._acked or digest not in update.layouts:
            held = self._shards.held()
            link = link_since(base, link, self._history, self._snapshot, self._table.kinds, held)
        return change_chunks(link.sections, self._settings.chunk_bytes)

    def _seed_chunks(self, link: SendingLink) -> list[Chunk]:
        arrays = [(index, unit.numel, unit.width) for index, unit in enumerate(link.units)]
        return range_chunks(arrays, link.dense, self._settings.chunk_bytes)

    def _warm_up(self) -> None:
        table = self._table
        held = zip(table.specs, table.kinds, table.dtypes, strict=True)
        dtypes = {(spec.torch_dtype, dtype) for spec, kind, dtype in held if kind == "mapped"}
        warm_up(dtypes, self._levels())

    def _levels(self) -> tuple[int, ...]:
        """Codec levels that its deltas may have."""
        if self._settings.dense:
            return ()
        return LEVELS if self._settings.level is None else (self._settings.level,)

    def _audit_link(self, update: Update) -> SendingLink | None:
        """An engine that takes every tensor whole, in the trainer's dtype, through its own loader."""
        if not update.audit:
            return None
        layouts = tuple(TensorLayout(spec.name, spec.dtype, "loader") for spec in update.table.specs)
        return self._new_link(layouts, lambda index: as_bits(update.raw[index].contiguous()).reshape(-1))

    def _audit(self, update: Update, link: SendingLink | None, delivery: Delivery) -> int:
        if link is None:
            return 0
        try:
            return delivery.audit(self._identity(None, update.target), link.units, self._seed_chunks(link))
        except BaseException as error:
            self._forget()
            delivery.abort(f"the audit ended: {type(error).__name__}: {error}")
            raise

    def _identity(self, base: int | None, target: int) -> Identity:
        return Identity(self.run, NO_BASE if base is None else base, target)

    def _give_up(self, update: Update, delivery: Delivery, reason: str, reseed: bool = False) -> None:
        self._discard()
        if update.seed:
            self._acked = None
        delivery.abort(reason, reseed)

    def _forget(self) -> None:
        self._discard()
        self._acked = None

    def _discard(self) -> None:
        self._staged = None
        self._snapshot.roll_back()
        self._history.discard()
        for link in self._links.values():
            link.discard()


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(as_bits(a), as_bits(b))
