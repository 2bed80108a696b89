"""How publisher and subscriber reach each other: two small interfaces, and the in-process implementation.

A channel is used by one sync at a time. Messages that an earlier one left in it are dropped, so nothing wrong can come
of using it again; `transports.interface` has channels that also keep them from making a sync fail.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Protocol

from slipstream.core.weights.errors import SyncTimeoutError


class PublisherChannel(Protocol):
    """The trainer's end: one peer for each engine worker."""

    def send(self, peer: bytes, data: bytes) -> None:
        """Send one message or frame to a worker."""

    def send_all(self, peers: Sequence[bytes], frame: bytes) -> None:
        """Send one frame to several workers.

        Raises:
            SyncTimeoutError: one of them is gone or has stopped reading.
        """

    def receive(self, timeout: float) -> tuple[bytes, bytes]:
        """Next (peer, message) from any worker.

        Raises:
            SyncTimeoutError: nothing came for `timeout` seconds.
            Exception: whatever `fail` was given.
        """

    def fail(self, error: BaseException) -> None:
        """Make the pending and all later `receive` raise `error`: the engine call behind this channel has died."""

    def close(self) -> None:
        """Release the endpoint; pending sends are dropped."""


class SubscriberChannel(Protocol):
    """An engine worker's end."""

    def send(self, data: bytes) -> None:
        """Send one message to the publisher."""

    def receive(self, timeout: float) -> bytes:
        """Next message or frame.

        Raises:
            SyncTimeoutError: nothing came for `timeout` seconds.
        """

    def close(self) -> None:
        """Disconnect."""


class InProcessHub:
    """Queues instead of sockets, for an engine in the trainer's own process and for tests."""

    def __init__(self) -> None:
        self._inbox: queue.Queue[tuple[bytes, bytes] | BaseException] = queue.Queue()
        self._outboxes: dict[bytes, queue.Queue[bytes]] = {}

    def connect(self, name: str) -> InProcessSubscriber:
        """A new subscriber end."""
        peer = name.encode()
        self._outboxes[peer] = queue.Queue()
        return InProcessSubscriber(peer, self._inbox, self._outboxes[peer])

    def send(self, peer: bytes, data: bytes) -> None:
        if peer not in self._outboxes:
            raise SyncTimeoutError(f"engine worker {peer!r} is gone")
        self._outboxes[peer].put(data)

    def send_all(self, peers: Sequence[bytes], frame: bytes) -> None:
        for peer in peers:
            self.send(peer, frame)

    def receive(self, timeout: float) -> tuple[bytes, bytes]:
        try:
            item = self._inbox.get(timeout=timeout)
        except queue.Empty:
            raise SyncTimeoutError(f"no engine worker answered within {timeout:.5g} s") from None
        if isinstance(item, BaseException):
            self._inbox.put(item)
            raise item
        return item

    def fail(self, error: BaseException) -> None:
        self._inbox.put(error)

    def close(self) -> None:
        self._outboxes.clear()


class InProcessSubscriber:
    """Subscriber end of an `InProcessHub`."""

    def __init__(
        self, peer: bytes, to_publisher: queue.Queue[tuple[bytes, bytes] | BaseException], inbox: queue.Queue[bytes]
    ) -> None:
        self._peer = peer
        self._to_publisher = to_publisher
        self._inbox = inbox

    def send(self, data: bytes) -> None:
        self._to_publisher.put((self._peer, data))

    def receive(self, timeout: float) -> bytes:
        try:
            return self._inbox.get(timeout=timeout)
        except queue.Empty:
            raise SyncTimeoutError(f"the trainer said nothing for {timeout:.5g} s") from None

    def close(self) -> None:
        """Nothing to release."""
