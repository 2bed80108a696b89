"""Links between trainer ranks and engine workers that can do anything to any message, at any boundary."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from virtual_time import VirtualTime

from slipstream.core.weights import SyncTimeoutError
from slipstream.core.weights.messages import decode
from slipstream.core.weights.wire import MAGIC

Link = tuple[str, int, int]
"""(direction, trainer rank, worker)."""


class Killed(BaseException):
    """The process is gone: nothing it does from here on is seen by anyone."""


@dataclass(frozen=True)
class Fault:
    """What happens to one message."""

    kind: str
    """lose, truncate, flip, duplicate, reorder (after the next one of its link), late (`after` messages later, in
    the next sync if there are not so many), cut (the link is dead from here on), kill worker, kill trainer."""
    after: int = 1
    place: float = 1.0
    """Where truncate and flip hit, as a share of the message."""


MESSAGE_FAULTS = ("lose", "truncate", "flip", "duplicate", "reorder", "late", "cut")
KINDS = (*MESSAGE_FAULTS, "kill worker", "kill trainer")


class FaultyNet:
    """One channel a (trainer rank, worker), used for sync after sync; what was left in it stays."""

    def __init__(self, clock: VirtualTime) -> None:
        self.clock = clock
        self.ranks = 0
        self.faults: Mapping[int, Fault] = {}
        self.count = 0
        """Messages sent in this sync, in both directions."""
        self.log: list[tuple[Link, str]] = []
        """Link and kind of each of them."""
        self.hit: list[str] = []
        self.commit_sent = False
        self.broken_collective: int | None = None
        """Rank on which the collective fails although the others got their answer."""
        self.dead_workers: set[int] = set()
        self.trainer_dead = False
        self._inbox: dict[int, deque[tuple[bytes, bytes]]] = {}
        self._outbox: dict[tuple[int, int], deque[bytes]] = {}
        self._held: dict[Link, bytes] = {}
        self._late: list[tuple[int, Link, bytes]] = []
        self._cut: set[tuple[int, int]] = set()
        self._votes: dict[int, bool] = {}

    def start(self, ranks: int, faults: Mapping[int, Fault], fresh: bool) -> None:
        """Begin a sync; `fresh` opens new channels, so nothing of earlier ones can arrive."""
        if fresh:
            self.forget()
        self._late = [(max(0, when - self.count), link, data) for when, link, data in self._late]
        self.ranks, self.faults, self.count, self.hit, self.commit_sent = ranks, faults, 0, [], False
        self.log, self.broken_collective, self.dead_workers, self.trainer_dead = [], None, set(), False
        self._cut, self._votes = set(), {}

    def forget(self) -> None:
        """Drop everything that is on its way."""
        for store in (self._inbox, self._outbox, self._held, self._late):
            store.clear()

    def post(self, link: Link, data: bytes) -> None:
        """Send one message."""
        direction, rank, worker = link
        if self._gone(direction == "up", worker):
            raise Killed
        self.commit_sent |= direction == "down" and b"Commit" in data
        self.log.append((link, "Frame" if data.startswith(MAGIC) else type(decode(data)[0]).__name__))
        fault = self.faults.get(self.count)
        self.count += 1
        for entry in [entry for entry in self._late if entry[0] <= self.count]:
            self._late.remove(entry)
            self._put(*entry[1:])
        if fault is None:
            self._deliver(link, data)
            return
        self.hit.append(fault.kind)
        if fault.kind == "kill worker":
            self.dead_workers.add(worker)
        elif fault.kind == "kill trainer":
            self.trainer_dead = True
        elif fault.kind == "cut":
            self._cut.add((rank, worker))
        elif fault.kind == "reorder":
            self._held[link] = data
        elif fault.kind == "late":
            self._late.append((self.count + fault.after, link, data))
        elif fault.kind == "duplicate":
            self._deliver(link, data)
            self._deliver(link, data)
        elif fault.kind == "truncate":
            self._deliver(link, data[: min(len(data) - 1, int(len(data) * fault.place / 2))])
        elif fault.kind == "flip":
            at = min(len(data) - 1, int(len(data) * fault.place))
            self._deliver(link, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        if self._gone(direction == "up", worker):
            raise Killed

    def take_up(self, rank: int, timeout: float) -> tuple[bytes, bytes]:
        """Next (worker, message) for a trainer rank."""
        inbox = self._inbox.setdefault(rank, deque())
        arrived = self.clock.wait(lambda: bool(inbox) or self.trainer_dead, timeout)
        if self.trainer_dead:
            raise Killed
        if not arrived:
            raise SyncTimeoutError(f"no engine worker answered within {timeout:g} s")
        return inbox.popleft()

    def take_down(self, rank: int, worker: int, timeout: float) -> bytes:
        """Next message for a worker from a trainer rank."""
        outbox = self._outbox.setdefault((rank, worker), deque())
        arrived = self.clock.wait(lambda: bool(outbox) or worker in self.dead_workers, timeout)
        if worker in self.dead_workers:
            raise Killed
        if not arrived:
            raise SyncTimeoutError(f"the trainer said nothing for {timeout:g} s")
        return outbox.popleft()

    def agree(self, rank: int, ready: bool) -> bool:
        """The collective over the trainer ranks."""
        self._votes[rank] = ready
        self.clock.wait(lambda: len(self._votes) == self.ranks or self.trainer_dead, 1000.0)
        if self.trainer_dead:
            raise Killed
        assert len(self._votes) == self.ranks, "a trainer rank never came to the collective"
        if self.broken_collective == rank:
            raise RuntimeError("gloo: connection closed by peer")
        return all(self._votes.values())

    def _gone(self, is_worker: bool, worker: int) -> bool:
        return worker in self.dead_workers if is_worker else self.trainer_dead

    def _deliver(self, link: Link, data: bytes) -> None:
        self._put(link, data)
        if link in self._held:
            self._put(link, self._held.pop(link))

    def _put(self, link: Link, data: bytes) -> None:
        direction, rank, worker = link
        if (rank, worker) in self._cut:
            return
        if direction == "up":
            self._inbox.setdefault(rank, deque()).append((b"%d" % worker, data))
        else:
            self._outbox.setdefault((rank, worker), deque()).append(data)


class PublisherEnd:
    """`PublisherChannel` of one rank."""

    def __init__(self, net: FaultyNet, rank: int) -> None:
        self._net, self._rank = net, rank

    def send(self, peer: bytes, data: bytes) -> None:
        self._net.post(("down", self._rank, int(peer)), data)

    def send_all(self, peers: Sequence[bytes], frame: bytes) -> None:
        for peer in peers:
            self.send(peer, frame)

    def receive(self, timeout: float) -> tuple[bytes, bytes]:
        return self._net.take_up(self._rank, timeout)

    def fail(self, error: BaseException) -> None:
        raise AssertionError("adapters fail a channel when the engine call dies; here workers are parties of their own")

    def close(self) -> None:
        pass


class SubscriberEnd:
    """`SubscriberChannel` of one worker to one rank."""

    def __init__(self, net: FaultyNet, rank: int, worker: int) -> None:
        self._net, self._rank, self._worker = net, rank, worker

    def send(self, data: bytes) -> None:
        self._net.post(("up", self._rank, self._worker), data)

    def receive(self, timeout: float) -> bytes:
        return self._net.take_down(self._rank, self._worker, timeout)

    def close(self) -> None:
        pass
