"""ZeroMQ transport: a ROUTER at the trainer, a DEALER in every engine worker; `ipc://` or `tcp://` addresses."""

from __future__ import annotations

import time
import uuid
from typing import Literal

import zmq

from slipstream.core.weights.errors import SyncTimeoutError

_POLL_SECONDS = 0.2
_QUEUED_FRAMES = 4
"""Frames in flight a peer; more only moves memory from the sender to the socket."""


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
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an unknown peer is an error, not a dropped message
        self._socket.setsockopt(zmq.SNDHWM, _QUEUED_FRAMES)
        self._socket.setsockopt(zmq.SNDTIMEO, int(timeout * 1000))
        self._socket.setsockopt(zmq.IPV6, 1)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._error: BaseException | None = None

    def send(self, peer: bytes, data: bytes) -> None:
        try:
            self._socket.send_multipart([peer, data], copy=len(data) < 65_536)
        except zmq.Again:
            raise SyncTimeoutError(f"engine worker {peer!r} stopped reading its frames") from None
        except zmq.ZMQError as error:
            raise SyncTimeoutError(f"engine worker {peer!r} is gone: {error}") from error

    def receive(self, timeout: float) -> tuple[bytes, bytes]:
        deadline = time.monotonic() + timeout
        while True:
            if self._error is not None:
                raise self._error
            left = deadline - time.monotonic()
            if self._socket.poll(max(0, int(min(left, _POLL_SECONDS) * 1000))):
                peer, data = self._socket.recv_multipart()
                return peer, data
            if left <= 0:
                raise SyncTimeoutError(f"no engine worker answered on {self.endpoint} within {timeout:g} s")

    def fail(self, error: BaseException) -> None:
        self._error = error

    def close(self) -> None:
        # A short linger lets the last Abort or Commit leave; a dead peer cannot hold it longer.
        self._context.destroy(linger=2000)


class ZmqSubscriberChannel:
    """Connects to the publisher's endpoint."""

    def __init__(self, endpoint: str, timeout: float) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 2000)
        self._socket.setsockopt(zmq.RCVHWM, _QUEUED_FRAMES)
        self._socket.setsockopt(zmq.SNDTIMEO, int(timeout * 1000))
        self._socket.setsockopt(zmq.IPV6, 1)
        self._socket.setsockopt(zmq.IDENTITY, uuid.uuid4().bytes)
        self._socket.connect(endpoint)
        self._endpoint = endpoint

    def send(self, data: bytes) -> None:
        try:
            self._socket.send(data)
        except zmq.Again:
            raise SyncTimeoutError(f"the trainer is not reading on {self._endpoint}") from None

    def receive(self, timeout: float) -> bytes:
        if not self._socket.poll(int(timeout * 1000)):
            raise SyncTimeoutError(f"the trainer said nothing on {self._endpoint} for {timeout:g} s")
        data: bytes = self._socket.recv()
        return data

    def close(self) -> None:
        self._context.destroy(linger=2000)
