"""The publisher's side of one exchange with the engine workers; `messages` shows the order."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from slipstream.core.weights.channel import PublisherChannel
from slipstream.core.weights.checkpoint import Checkpoint
from slipstream.core.weights.conversation import Conversation, Frame, State
from slipstream.core.weights.errors import (
    AuditMismatchError,
    EngineFailedError,
    FingerprintMismatchError,
    LayoutChangedError,
    SyncError,
    SyncTimeoutError,
    UncertainCommitError,
)
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
from slipstream.core.weights.roster import Roster, WorkerLayout
from slipstream.core.weights.units import WireUnit
from slipstream.core.weights.wire import Identity, pack_frame

logger = logging.getLogger(__name__)
_M = TypeVar("_M", bound=Message)

Chunk = Callable[[], Iterable[list[bytes]]]
"""Makes the sections of one frame when it is sent, so that a seed is never in memory twice."""

_LAST_WORDS_SECONDS = 2.0


@dataclass
class Peer:
    """One engine worker during an exchange."""

    hello: Hello
    talk: Conversation
    layout: WorkerLayout | None = None
    applied: Applied | None = None


class Delivery:
    """One exchange. Every method raises the engine's error if a worker reports one, and a timeout if all are silent."""

    def __init__(self, channel: PublisherChannel, table: Checkpoint, timeout: float, sender: int) -> None:
        self._channel = channel
        self._table = table
        self._timeout = timeout
        self._sender = sender
        self.peers: dict[bytes, Peer] = {}
        self.sent: dict[tuple[str, int | None], int] = {}
        """Bytes of frames that each worker of a group was sent; see `groups`."""

    def handshake(self, workers: int, roster: Roster, units_of: Callable[[WorkerLayout], tuple[WireUnit, ...]]) -> None:
        """Wait for `workers` workers and learn the layouts that `roster` does not have.

        `units_of` gives the units for a layout; a worker is told them once.
        """
        while sum(peer.layout is not None for peer in self.peers.values()) < workers:
            address, message = self._next(meeting=True)
            peer = self.peers[address]
            if isinstance(message, Hello):
                if message.table == self._table.digest:
                    peer.layout = roster.get(message.worker)
                if peer.layout is None:
                    self._say(address, Table(self._table.specs, self._table.run))
            elif isinstance(message, Layout):
                digest = self._table.layout_digest(message.tensors)
                peer.layout = roster.add(peer.hello.worker, digest, message.tensors)
                # Recording a layout forgets the version, so the version of its Hello no longer counts.
                peer.hello = Hello(peer.hello.worker, None, None, self._table.digest)
                self._say(address, Units(self._sender, units_of(peer.layout)))
            else:
                raise SyncError(f"expected Hello or Layout from a worker, got {type(message).__name__}")
        for address in [address for address, peer in self.peers.items() if peer.layout is None]:
            self._dismiss(address)
        roster.met([peer.hello.worker for peer in self.peers.values()])

    def _dismiss(self, address: bytes) -> None:
        """Go on without a worker that has not said its layout when all others have: it was replaced, or is too many."""
        try:
            self._say(address, Abort("the sync goes on without this worker; join the next one"))
        except Exception as error:
            logger.debug("a worker that reported is gone: %s", error)
        del self.peers[address]

    def layouts(self) -> dict[str, WorkerLayout]:
        """Layouts of the workers, by digest."""
        return {peer.layout.digest: peer.layout for peer in self.peers.values() if peer.layout is not None}

    def groups(self, bases: Mapping[bytes, int | None]) -> dict[tuple[str, int | None], list[bytes]]:
        """Workers that get the same frames: by layout digest and the version they start from, None for a seed.

        In the same order on every trainer rank, whoever reported first and whatever one rank has to seed: a worker
        reads the frames of all ranks in turn, so two ranks that each serve another group first could wait for each
        other.
        """
        result: dict[tuple[str, int | None], list[bytes]] = {}
        for address, base in bases.items():
            if (layout := self.peers[address].layout) is not None:
                result.setdefault((layout.digest, base), []).append(address)
        return dict(sorted(result.items(), key=lambda group: (group[0][0], group[0][1] is None, group[0][1] or 0)))

    def announce(self, group: Sequence[bytes], begin: Begin) -> None:
        """Tell the workers of `group` what comes."""
        for address in group:
            self._say(address, begin)

    def send_update(self, group: Sequence[bytes], identity: Identity, chunks: Sequence[Chunk]) -> int:
        """Send one update to the workers of `group`, once all workers of all groups know what comes; return the bytes
        of all frames sent.

        A worker reads no frame before every trainer rank has announced its update to it, and a rank announces nothing
        before it has met every worker.
        """
        return self._send_frames(group, identity, chunks)

    def confirm(self, expected: Mapping[str, list[int]], units: Mapping[str, Sequence[WireUnit]]) -> None:
        """Wait until every worker has applied the update, and compare what it holds.

        Args:
            expected: fingerprints by layout digest, one a unit.
            units: by layout digest, to name what is wrong.

        Raises:
            FingerprintMismatchError: a worker holds other bits.
        """
        for peer, message in self._collect(Applied, set(self.peers)):
            assert peer.layout is not None
            peer.applied = message
            want = np.array(expected[peer.layout.digest], "<u8")
            got = np.frombuffer(message.fingerprints, "<u8")
            wrong = np.flatnonzero(want != got) if want.shape == got.shape else np.arange(len(want))
            if wrong.size:
                tensors = [t for i in wrong[:3] for t in units[peer.layout.digest][i].tensors]
                names = [self._table.specs[t].name for t in tensors]
                more = f" and {len(names) - 8} more" if len(names) > 8 else ""
                raise FingerprintMismatchError(
                    f"{peer.hello.worker} holds other bits than the trainer sent in {wrong.size} of {want.size} "
                    f"units, the first with (parts of) {', '.join(names[:8])}{more}. Something else writes its "
                    "weights, or its memory is damaged."
                )

    def commit(self, audit: bool) -> None:
        """Make the update final on every worker, and announce whether an audit follows.

        Raises:
            UncertainCommitError: a worker did not confirm.
        """
        lost: Exception | None = None
        told: set[bytes] = set()
        try:
            for address in self.peers:
                try:
                    self._say(address, Commit(audit))
                    told.add(address)
                except SyncError as error:  # one that is gone must not keep the verdict from the others
                    lost = error
            for _ in self._collect(Done, told):
                pass
            if lost is not None:
                raise lost
        except Exception as error:
            if audit:
                self.abort("there is no audit, because not every engine worker confirmed the commit")
            raise UncertainCommitError(
                f"not every engine worker confirmed the commit ({error}); the next sync seeds those that went back"
            ) from error

    def audit(self, identity: Identity, units: tuple[WireUnit, ...], chunks: Sequence[Chunk]) -> int:
        """Send the whole checkpoint for a dense load; return how many engine tensors were compared.

        Raises:
            AuditMismatchError: the dense load changed something.
        """
        for address in self.peers:
            self._say(address, Units(self._sender, units))
        self._send_frames(tuple(self.peers), identity, chunks)
        compared = 0
        for peer, outcome in self._collect(Audited, set(self.peers)):
            compared += outcome.compared
            if outcome.different:
                raise AuditMismatchError(
                    f"audit of version {identity.target} on {peer.hello.worker}: a dense load by the engine's own "
                    f"loader changes {len(outcome.different)} of {outcome.compared} tensors, for example "
                    f"{outcome.different[:3]}"
                )
        return compared

    def abort(self, reason: str, reseed: bool = False) -> None:
        """Tell every worker seen so far to undo; one that gave up or is gone has nothing to undo."""
        for address, peer in self.peers.items():
            if peer.talk.state is not State.ENDED:
                try:
                    self._say(address, Abort(reason, reseed))
                except Exception as error:  # the others must still hear it
                    logger.debug("nothing to abort: %s", error)

    def _send_frames(self, group: Sequence[bytes], identity: Identity, chunks: Sequence[Chunk]) -> int:
        sent = 0
        for index, chunk in enumerate(chunks):
            frame = pack_frame(identity, index, chunk())
            for address in group:
                self.peers[address].talk.step(Frame)
            try:
                self._channel.send_all(group, frame)
            except SyncTimeoutError:
                with contextlib.suppress(SyncTimeoutError):
                    self._next(_LAST_WORDS_SECONDS)  # a worker that stopped reading has usually said why
                raise
            sent += len(frame) * len(group)
        return sent

    def _collect(self, kind: type[_M], waiting: set[bytes]) -> Iterator[tuple[Peer, _M]]:
        while waiting:
            address, message = self._next()
            if not isinstance(message, kind):
                raise SyncError(f"expected {kind.__name__} from a worker, got {type(message).__name__}")
            waiting.discard(address)
            yield self.peers[address], message

    def _say(self, address: bytes, message: Message) -> None:
        talk = self.peers[address].talk
        talk.step(type(message))
        self._channel.send(address, encode(message, talk.exchange))

    def _next(self, timeout: float | None = None, meeting: bool = False) -> tuple[bytes, Message]:
        """Next message of this exchange.

        Args:
            timeout: seconds; the usual ones by default.
            meeting: a worker that reports is welcome; otherwise it is sent away, and the others go on.
        """
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        while True:
            address, data = self._channel.receive(max(0.0, deadline - time.monotonic()))
            message, exchange = decode(data)
            peer = self.peers.get(address)
            if isinstance(message, Hello) and (peer is None or peer.talk.exchange != exchange):
                if not meeting:
                    self._channel.send(address, encode(Abort("an update is under way; join the next one"), exchange))
                    continue
                peer = self.peers[address] = Peer(message, Conversation(exchange))
            elif isinstance(message, Hello):
                continue  # said twice
            if peer is None or peer.talk.exchange != exchange:
                logger.debug("dropped %s of an earlier exchange", type(message).__name__)
                continue
            peer.talk.step(type(message))
            if isinstance(message, Failed) and message.reseed:
                raise LayoutChangedError(message.error)
            if isinstance(message, Failed):
                raise EngineFailedError(
                    f"an engine worker could not apply the update: {message.error}\n{message.traceback}"
                )
            return address, message
