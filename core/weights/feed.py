"""A worker's conversation with one of the trainer ranks it is connected to."""

from __future__ import annotations

import logging
import time
import traceback
from typing import TypeVar

from slipstream.core.weights.channel import SubscriberChannel
from slipstream.core.weights.errors import AbortedError, SyncError, SyncTimeoutError
from slipstream.core.weights.messages import Abort, Begin, Failed, Message, decode, encode
from slipstream.core.weights.units import WireUnit

logger = logging.getLogger(__name__)
_M = TypeVar("_M", bound=Message)


class Feed:
    """One publisher during one sync."""

    def __init__(self, channel: SubscriberChannel) -> None:
        self._channel = channel
        self.begin: Begin = Begin(0, None, 0, 0, False, 0)
        """What it announced, once it has."""
        self.units: tuple[WireUnit, ...] = ()
        """What it addresses this worker in."""
        self.waited = 0.0
        """Seconds spent waiting for its frames."""
        self.first = 0
        """Number of the first of them among the units of all feeds."""

    def send(self, message: Message) -> None:
        """Send one message."""
        self._channel.send(encode(message))

    def receive(self, timeout: float) -> Message:
        """Next message.

        Raises:
            SyncTimeoutError: nothing came for `timeout` seconds.
        """
        return decode(self._channel.receive(timeout))

    def expect(self, kind: type[_M], timeout: float) -> _M:
        """Next message, of that kind.

        Raises:
            AbortedError: the publisher gave up.
            SyncError: it is of another kind.
        """
        return expect(self.receive(timeout), kind)

    def frame(self, timeout: float) -> bytes:
        """Next frame.

        Raises:
            AbortedError: the publisher gave up.
        """
        start = time.perf_counter()
        data = self._channel.receive(timeout)
        self.waited += time.perf_counter() - start
        if not data.startswith(b"SLPS"):
            expect(decode(data), Begin)  # an Abort in place of a frame
        return data

    def report(self, error: BaseException) -> None:
        """Tell the publisher what went wrong here."""
        text = "".join(traceback.format_exception(error))
        try:
            self.send(Failed(f"{type(error).__name__}: {error}", text))
        except SyncTimeoutError as gone:
            logger.debug("nobody to report to: %s", gone)


def expect(message: Message, kind: type[_M]) -> _M:
    """`message`, which is to be of that kind; errors as in `Feed.expect`."""
    if isinstance(message, Abort):
        raise AbortedError(f"the trainer aborted the sync: {message.reason}")
    if not isinstance(message, kind):
        raise SyncError(f"expected {kind.__name__}, got {type(message).__name__}; both ends must run the same version")
    return message
