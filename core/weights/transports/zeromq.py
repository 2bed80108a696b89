"""ZeroMQ transport: a ROUTER at the trainer, a DEALER in every engine worker; `ipc://` or `tcp://` addresses."""

from __future__ import annotations

import secrets
import time
import uuid
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Literal

import zmq

from slipstream.core.weights.errors import SyncTimeoutError
from slipstream.core.weights.transports.address import Address

_POLL_SECONDS = 0.2
_LINGER_MILLISECONDS = 2000
"""Lets the last Abort or Commit leave; a dead peer cannot hold an end longer."""
_QUEUED_FRAMES = 4
"""Frames in flight a peer; more only moves memory from the sender to the socket."""
_KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 30, zmq.TCP_KEEPALIVE_INTVL: 10, zmq.TCP_KEEPALIVE_CNT: 3}
"""The kernel finds a host that is gone within a minute, and keeps the entry of an idle connection in firewalls.

Not ZeroMQ's own heartbeats: a worker that decodes a large update answers none, and would be disconnected.
"""


def open_end(
    role: Literal["publisher", "subscriber"], endpoint: str, timeout: float
) -> ZmqPublisherChannel | ZmqSubscriberChannel:
    """Open one end of a link.

    Args:
        role: who opens it.
        endpoint: ZeroMQ address: the publisher binds it, subscribers connect to it.
        timeout: seconds a send may block.
    """
    return ZmqPublisherChannel(endpoint, timeout) if role == "publisher" else ZmqSubscriberChannel(endpoint, timeout)


class ZmqPublisherChannel:
    """Binds `endpoint`. With `tcp://host:*` the port is chosen by the system; read it from `endpoint` afterwards."""

    def __init__(self, endpoint: str, timeout: float) -> None:
        self._socket, self._end = _open_socket(self, zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an unknown peer is an error, not a dropped message
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a worker that connects again, before its old socket is missed
        self._socket.setsockopt(zmq.SNDHWM, _QUEUED_FRAMES)
        self._socket.setsockopt(zmq.SNDTIMEO, int(_POLL_SECONDS * 1000))
        _set_up(self._socket)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError:
            _end_socket(self._end, linger=0)
            raise
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._timeout = timeout
        self._sync = b""
        self._heard: deque[tuple[bytes, bytes]] = deque()
        self._error: BaseException | None = None

    def invite(self, sync: str = "") -> str:
        sync = sync or secrets.token_hex(4)
        self._sync, self._error = sync.encode(), None
        self._heard.clear()
        return str(Address("zeromq", self.endpoint, sync))

    def send(self, peer: bytes, data: bytes) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                self._socket.send_multipart([peer, self._sync, data], copy=len(data) < 65_536)
                return
            except zmq.Again:
                self._hear()
                said = any(address == peer for address, _ in self._heard)  # one that still reads says nothing
                if said or self._error is not None or time.monotonic() > deadline:
                    raise SyncTimeoutError(f"engine worker {peer!r} stopped reading its frames") from self._error
            except zmq.ZMQError as error:
                raise SyncTimeoutError(f"engine worker {peer!r} is gone: {error}") from error

    def send_all(self, peers: Sequence[bytes], frame: bytes) -> None:
        for peer in peers:
            self.send(peer, frame)

    def receive(self, timeout: float) -> tuple[bytes, bytes]:
        deadline = time.monotonic() + timeout
        while True:
            if self._error is not None:
                raise self._error
            self._hear()
            if self._heard:
                return self._heard.popleft()
            left = deadline - time.monotonic()
            if left <= 0:
                raise SyncTimeoutError(f"no engine worker answered on {self.endpoint} within {timeout:.5g} s")
            self._socket.poll(int(min(left, _POLL_SECONDS) * 1000) + 1)

    def _hear(self) -> None:
        """Take in what has come, without waiting."""
        while self._socket.poll(0):
            match self._socket.recv_multipart():
                case [peer, self._sync, data]:  # anything else is of another sync, or of no worker of ours
                    self._heard.append((peer, data))

    def fail(self, error: BaseException) -> None:
        self._error = error

    def close(self) -> None:
        _end_socket(self._end)


class ZmqSubscriberChannel:
    """Connects to the publisher's endpoint, and again when a publisher there has been replaced."""

    def __init__(self, endpoint: str, timeout: float) -> None:
        self._socket, self._end = _open_socket(self, zmq.DEALER)
        self._socket.setsockopt(zmq.RCVHWM, _QUEUED_FRAMES)
        _set_up(self._socket)
        self._socket.setsockopt(zmq.IDENTITY, uuid.uuid4().bytes)
        self._endpoint = endpoint
        self.join("", timeout)
        self._socket.connect(endpoint)

    def join(self, sync: str, timeout: float) -> None:
        self._sync = sync.encode()
        self._socket.setsockopt(zmq.SNDTIMEO, int(timeout * 1000))

    def send(self, data: bytes) -> None:
        try:
            self._socket.send_multipart([self._sync, data])
        except zmq.Again:
            raise SyncTimeoutError(f"the trainer is not reading on {self._endpoint}") from None

    def receive(self, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        while self._socket.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            match self._socket.recv_multipart():
                case [self._sync, data]:
                    return bytes(data)
        raise SyncTimeoutError(f"the trainer said nothing on {self._endpoint} for {timeout:.5g} s")

    def close(self) -> None:
        _end_socket(self._end)


def _open_socket(owner: object, kind: int) -> tuple[zmq.Socket[bytes], weakref.finalize[..., object]]:
    """A socket in a context of its own, both ended by `_end_socket`, or with `owner`.

    A context that is collected as garbage together with its socket waits for ever for that to be closed: the collector
    has cleared the context's weak references to it by then. The finalizer keeps both from being garbage.
    """
    context = zmq.Context()
    socket = context.socket(kind)
    end = weakref.finalize(owner, _destroy, context, socket, 0)
    end.atexit = False
    return socket, end


def _end_socket(end: weakref.finalize[..., object], linger: int = _LINGER_MILLISECONDS) -> None:
    if (kept := end.detach()) is not None:
        context, socket, _ = kept[2]
        _destroy(context, socket, linger)


def _destroy(context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes], linger: int) -> None:
    socket.close(linger=linger)
    context.destroy(linger=linger)


def _set_up(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.IPV6, 1)
    for option, value in _KEEPALIVE.items():
        socket.setsockopt(option, value)
