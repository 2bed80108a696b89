"""The trainer end of weight sync: one `Publisher` for each stream of weights, for the life of the run."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from slipstream.core.weights.channel import PublisherChannel
from slipstream.core.weights.checkpoint import Checkpoint, merge_layouts
from slipstream.core.weights.errors import (
    AuditMismatchError,
    EngineFailedError,
    FingerprintMismatchError,
    SyncError,
    SyncTimeoutError,
)
from slipstream.core.weights.fingerprints import MASK
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
    decode,
    encode,
)
from slipstream.core.weights.snapshot import Snapshot
from slipstream.core.weights.tensors import TensorSpec
from slipstream.core.weights.wire import NO_BASE, Identity, changes_section, pack_frame, range_section

logger = logging.getLogger(__name__)

_REFUSE_SECONDS = 5.0
Agree = Callable[[bool], bool]
"""Whether every trainer rank is ready, given whether this one is; a collective where there are several ranks."""


@dataclass(frozen=True)
class PublisherSettings:
    """Options of a publisher; see `slipstream.core.config.WeightSyncConfig` for their meaning."""

    timeout: float = 300.0
    """Seconds to wait for each message of a worker."""
    chunk_bytes: int = 64 << 20
    audit_every: int = 0
    verify_every: int = 16
    dense: bool = False
    """Ship every element at every sync."""
    keep_on_device: bool = False


@dataclass
class Update:
    """Weights staged for delivery: the trainer's tensors are no longer needed after it exists."""

    target: int
    table: Checkpoint
    seed: bool
    """Every worker gets all elements."""
    sections: list[list[bytes]] = field(default_factory=list)
    raw: dict[int, torch.Tensor] = field(default_factory=dict)
    """Trainer-dtype host copies, kept for a first seed or an audit."""
    audit: bool = False
    changed: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class SyncReport:
    """What one sync did."""

    run: int
    base: int | None
    target: int
    stage_seconds: float
    """Gathering, comparing and encoding on the trainer."""
    deliver_seconds: float
    """From the first message to the last acknowledgement."""
    payload_bytes: int
    """Bytes of frames sent, over all workers."""
    dense_bytes: int
    """What the same workers would have been sent in full, in the trainer's dtype."""
    changed_elements: int
    total_elements: int
    workers: int
    seeded_workers: int
    audited_tensors: int = 0
    """Engine tensors compared with a dense load; 0 when this sync was not audited."""


@dataclass
class _Peer:
    hello: Hello
    layout: tuple[str, Layout]
    """Digest and content."""
    seeded: bool = False


class Publisher:
    """Stages weights, delivers them to engine workers, and advances its snapshot only when all hold the result."""

    def __init__(self, settings: PublisherSettings) -> None:
        self._settings = settings
        self.run = secrets.randbits(63)
        self._attempts = 0
        self._acked: int | None = None
        self._table: Checkpoint | None = None
        self._snapshot = Snapshot(settings.keep_on_device)
        self._layouts: dict[str, tuple[str, Layout]] = {}  # by worker name
        self._expected: dict[str, list[int]] = {}  # layout digest -> fingerprints at the acknowledged version

    @property
    def acked(self) -> int | None:
        """Version that every worker acknowledged last; None before the first seed."""
        return self._acked

    def stage(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Update:
        """Consume the trainer's weights and work out what has to travel.

        Args:
            weights: (checkpoint name, full tensor) in a fixed order. Always consumed to the end: with FSDP every item
                is a collective, so stopping early would hang the other ranks.

        Raises:
            SyncError: the names, shapes or dtypes are not those of the previous sync. The next sync is a dense seed.
            TypeError: a dtype cannot travel.
        """
        start = time.perf_counter()
        self._attempts += 1
        seed = self._acked is None or self._settings.dense
        audit = self._settings.audit_every > 0 and self._attempts % self._settings.audit_every == 0
        update = Update(self._attempts, self._table or Checkpoint(()), seed, audit=audit)
        specs: list[TensorSpec] = []
        failure: Exception | None = None
        for index, (name, tensor) in enumerate(weights):
            if failure is not None:
                continue
            try:
                spec = TensorSpec.of(name, tensor)
                specs.append(spec)
                if seed or audit:
                    update.raw[index] = tensor.detach().to("cpu", copy=True)
                if not seed:
                    update.table.check(index, spec)
                    self._stage_changes(update, index, tensor)
            except Exception as error:
                failure = error
        if failure is None and not seed and len(specs) != len(update.table.specs):
            failure = SyncError(f"{len(specs)} tensors came, {len(update.table.specs)} were expected")
        if failure is not None:
            self._forget()
            raise failure
        if seed:
            if tuple(specs) != update.table.specs:
                self._layouts.clear()
                update.table = Checkpoint(tuple(specs))
            self._table = update.table
            self._expected.clear()
        update.seconds = time.perf_counter() - start
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
            In every case but AuditMismatchError the workers keep their old weights and the snapshot its version.
        """
        start = time.perf_counter()
        peers: dict[bytes, _Peer] = {}
        try:
            self._handshake(update, channel, workers, peers)
            payload = self._send(update, channel, peers)
            expected = self._confirm(update, channel, peers)
        except BaseException as error:
            agree(False)
            self._give_up(update, channel, peers, f"{type(error).__name__}: {error}")
            raise
        if not agree(True):
            reason = "another trainer rank could not deliver its weights"
            self._give_up(update, channel, peers, reason)
            raise SyncError(f"{reason}; its own error says why. All engines keep their old weights.")
        base = self._acked
        self._snapshot.commit()
        self._acked, self._expected = update.target, expected
        audited = self._commit(update, channel, peers)
        return SyncReport(
            run=self.run,
            base=None if update.seed else base,
            target=update.target,
            stage_seconds=update.seconds,
            deliver_seconds=time.perf_counter() - start,
            payload_bytes=payload,
            dense_bytes=update.table.dense_bytes * workers,
            changed_elements=update.changed,
            total_elements=update.table.elements,
            workers=workers,
            seeded_workers=sum(peer.seeded for peer in peers.values()),
            audited_tensors=audited,
        )

    def refuse(self, channel: PublisherChannel, workers: int, reason: str) -> None:
        """Send `workers` engine workers that already wait for a sync back to work, when staging has failed."""
        for _ in range(workers):
            try:
                peer, _ = channel.receive(_REFUSE_SECONDS)
                channel.send(peer, encode(Abort(reason)))
            except Exception as error:
                logger.debug("no worker to refuse: %s", error)
                return

    def sync(self, weights: Iterable[tuple[str, torch.Tensor]], channel: PublisherChannel, workers: int) -> SyncReport:
        """`stage` and `deliver` in one call."""
        return self.deliver(self.stage(weights), channel, workers)

    def _stage_changes(self, update: Update, index: int, tensor: torch.Tensor) -> None:
        table = update.table
        spec, kind, dtype = table.specs[index], table.kinds[index], table.dtypes[index]
        if kind == "unused":
            return
        changes = self._snapshot.update(index, tensor.detach().to(dtype))
        update.changed += changes.positions.size
        if kind == "loader":
            update.sections.append(range_section(index, 0, self._snapshot.dense(index), dtype.itemsize))
        elif changes.positions.size:
            dense = self._snapshot.dense(index)
            update.sections.append(changes_section(index, *changes, dense, spec.numel, dtype.itemsize))

    def _handshake(self, update: Update, channel: PublisherChannel, workers: int, peers: dict[bytes, _Peer]) -> None:
        hellos: dict[bytes, Hello] = {}
        while len(peers) < workers:
            peer, message = self._next(channel)
            if isinstance(message, Hello):
                hellos[peer] = message
                known = self._layouts.get(message.worker)
                if known is not None and message.table == update.table.digest:
                    peers[peer] = _Peer(message, known)
                else:
                    channel.send(peer, encode(Table(update.table.specs)))
            elif isinstance(message, Layout) and peer in hellos:
                hello = hellos[peer]
                self._layouts[hello.worker] = (update.table.layout_digest(message.tensors), message)
                peers[peer] = _Peer(Hello(hello.worker, None, None, None), self._layouts[hello.worker])
            else:
                raise SyncError(f"expected Hello or Layout from a worker, got {type(message).__name__}")
        merged = merge_layouts(update.table.specs, {p.hello.worker: p.layout[1].tensors for p in peers.values()})
        if update.seed:
            update.table.adopt(merged)
            self._fill_snapshot(update)
        elif not update.table.agrees(merged):
            raise SyncError(
                "an engine worker joined with another layout than the weights were staged for; restart it with the "
                "settings of the others"
            )
        for entry in peers.values():
            held = entry.hello.run == self.run and entry.hello.version == self._acked
            entry.seeded = update.seed or not held

    def _fill_snapshot(self, update: Update) -> None:
        for index, value in update.raw.items():
            if update.table.kinds[index] != "unused":
                self._snapshot.store(index, value.to(update.table.dtypes[index]))
                update.changed += value.numel()
        if not update.audit:
            update.raw.clear()

    def _send(self, update: Update, channel: PublisherChannel, peers: dict[bytes, _Peer]) -> int:
        sent = 0
        verify = self._settings.verify_every > 0 and self._attempts % self._settings.verify_every == 0
        for seeded in (False, True):
            group = [peer for peer, entry in peers.items() if entry.seeded is seeded]
            if not group:
                continue
            base = None if seeded else self._acked
            chunks = (
                self._seed_chunks(update) if seeded else _group_by_size(update.sections, self._settings.chunk_bytes)
            )
            identity = Identity(self.run, NO_BASE if base is None else base, update.target)
            for peer in group:
                channel.send(peer, encode(Begin(self.run, base, update.target, len(chunks), verify)))
            for index, chunk in enumerate(chunks):
                frame = pack_frame(identity, index, chunk() if callable(chunk) else chunk)
                for peer in group:
                    self._send_frame(channel, peer, frame)
                    sent += len(frame)
        return sent

    def _send_frame(self, channel: PublisherChannel, peer: bytes, frame: bytes) -> None:
        try:
            channel.send(peer, frame)
        except SyncTimeoutError:
            self._next(channel, timeout=2.0)  # a worker that stopped reading has usually said why
            raise

    def _seed_chunks(self, update: Update) -> list[Callable[[], Iterator[list[bytes]]]]:
        table = update.table
        items = [(i, table.dtypes[i].itemsize) for i, kind in enumerate(table.kinds) if kind != "unused"]
        return _range_chunks(table, items, self._snapshot.dense, self._settings.chunk_bytes)

    def _confirm(self, update: Update, channel: PublisherChannel, peers: dict[bytes, _Peer]) -> dict[str, list[int]]:
        """Wait until every worker has applied, and check what it holds; return the fingerprints by layout."""
        expected: dict[str, list[int]] = {}
        for digest, layout in {entry.layout[0]: entry.layout[1] for entry in peers.values()}.items():
            known = None if update.seed else self._expected.get(digest)
            expected[digest] = [
                self._expect(update, tensor, index, known) for index, tensor in enumerate(layout.tensors)
            ]
        for peer, message in self._collect(channel, peers, Applied):
            entry = peers[peer]
            want = np.array(expected[entry.layout[0]], "<u8")
            got = np.frombuffer(message.fingerprints, "<u8")
            wrong = np.flatnonzero(want != got) if want.shape == got.shape else np.arange(len(want))
            if wrong.size:
                names = [update.table.specs[i].name for i in wrong[:5]]
                raise FingerprintMismatchError(
                    f"{entry.hello.worker} holds other bits than the trainer sent in {wrong.size} of {want.size} "
                    f"tensors, for example {names}. Something else writes its weights, or its memory is damaged."
                )
        return expected

    def _expect(self, update: Update, layout: object, index: int, known: list[int] | None) -> int:
        from slipstream.core.weights.layout import TensorLayout

        assert isinstance(layout, TensorLayout)
        if not layout.pieces or update.table.kinds[index] != "mapped":
            return 0
        if known is None:
            return self._snapshot.expected(layout, index)
        return (known[index] + self._snapshot.expected_change(layout, index)) & MASK

    def _commit(self, update: Update, channel: PublisherChannel, peers: dict[bytes, _Peer]) -> int:
        chunks: list[Callable[[], Iterator[list[bytes]]]] = []
        if update.audit:
            items = [(i, spec.torch_dtype.itemsize) for i, spec in enumerate(update.table.specs)]
            raw = update.raw
            chunks = _range_chunks(
                update.table,
                items,
                lambda i: raw[i].contiguous().reshape(-1).view(torch.uint8).numpy(),
                self._settings.chunk_bytes,
            )
        for peer in peers:
            channel.send(peer, encode(Commit(len(chunks))))
        for _ in self._collect(channel, peers, Done):
            pass
        if not update.audit:
            return 0
        identity = Identity(self.run, NO_BASE, update.target)
        for index, chunk in enumerate(chunks):
            frame = pack_frame(identity, index, chunk())
            for peer in peers:
                self._send_frame(channel, peer, frame)
        compared = 0
        for peer, outcome in self._collect(channel, peers, Audited):
            compared += outcome.compared
            if outcome.different:
                self._forget()
                raise AuditMismatchError(
                    f"audit of version {update.target} on {peers[peer].hello.worker}: a dense load by the engine's own "
                    f"loader changes {len(outcome.different)} of {outcome.compared} tensors, for example "
                    f"{outcome.different[:3]}"
                )
        return compared

    def _collect(
        self, channel: PublisherChannel, peers: dict[bytes, _Peer], kind: type[Message]
    ) -> Iterator[tuple[bytes, Message]]:
        waiting = set(peers)
        while waiting:
            peer, message = self._next(channel)
            if not isinstance(message, kind) or peer not in waiting:
                raise SyncError(f"expected {kind.__name__} from a worker, got {type(message).__name__}")
            waiting.discard(peer)
            yield peer, message

    def _next(self, channel: PublisherChannel, timeout: float | None = None) -> tuple[bytes, Message]:
        peer, data = channel.receive(self._settings.timeout if timeout is None else timeout)
        message = decode(data)
        if isinstance(message, Failed):
            raise EngineFailedError(
                f"an engine worker could not apply the update: {message.error}\n{message.traceback}"
            )
        return peer, message

    def _give_up(self, update: Update, channel: PublisherChannel, peers: dict[bytes, _Peer], reason: str) -> None:
        self._snapshot.roll_back()
        if update.seed:
            self._acked = None
        for peer in peers:
            try:
                channel.send(peer, encode(Abort(reason)))
            except SyncError:
                logger.debug("worker %r is gone; nothing to abort there", peer)

    def _forget(self) -> None:
        self._snapshot.roll_back()
        self._acked = None


def _group_by_size(sections: list[list[bytes]], limit: int) -> list[list[list[bytes]]]:
    groups: list[list[list[bytes]]] = []
    size = limit
    for section in sections:
        section_size = sum(map(len, section))
        if size + section_size > limit:
            groups.append([])
            size = 0
        groups[-1].append(section)
        size += section_size
    return groups


def _range_chunks(
    table: Checkpoint,
    items: list[tuple[int, int]],
    read: Callable[[int], np.ndarray],
    limit: int,
) -> list[Callable[[], Iterator[list[bytes]]]]:
    """Cut whole tensors into frames of about `limit` bytes; each entry makes the sections of one frame when called."""
    frames: list[list[tuple[int, int, int, int]]] = []
    size = limit
    for tensor, width in items:
        numel = table.specs[tensor].numel
        first = 0
        while first < numel or numel == 0:
            if size >= limit:
                frames.append([])
                size = 0
            count = min(numel - first, max(1, (limit - size) // width))
            frames[-1].append((tensor, first, count, width))
            size += max(1, count * width)
            first += count
            if numel == 0:
                break

    def make(frame: list[tuple[int, int, int, int]]) -> Callable[[], Iterator[list[bytes]]]:
        return lambda: (
            range_section(tensor, first, read(tensor)[first * width : (first + count) * width], width)
            for tensor, first, count, width in frame
        )

    return [make(frame) for frame in frames]
