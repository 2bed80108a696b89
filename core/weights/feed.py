"""A worker's conversation with one of the trainer ranks it is connected to."""

from __future__ import annotations

import logging
import secrets
import time
import traceback
from typing import TypeVar

from slipstream.core.weights.channel import SubscriberChannel
from slipstream.core.weights.conversation import Conversation, Frame, State
from slipstream.core.weights.errors import AbortedError, SyncError, SyncTimeoutError
from slipstream.core.weights.messages import Abort, Begin, Failed, Message, decode, encode
from slipstream.core.weights.units import WireUnit
from slipstream.core.weights.wire import MAGIC

logger = logging.getLogger(__name__)
_M = TypeVar("_M", bound=Message)
_BEFORE_FRAMES = {State.GREETED, State.ANSWERED, State.TOLD}


class Feed:
    """One publisher during one sync."""

    def __init__(self, channel: SubscriberChannel) -> None:
        self._channel = channel
        self.talk = Conversation(secrets.randbits(63))
        """Where it is."""
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
        self.talk.step(type(message))
        self._channel.send(encode(message, self.talk.exchange))

    def receive(self, timeout: float) -> Message:
        """Next message.

        Raises:
            SyncTimeoutError: nothing came for `timeout` seconds.
            AbortedError: the publisher gave up.
            SyncError: it is not the turn of that message.
        """
        found = self._next(timeout, frame=False)
        assert not isinstance(found, bytes)
        return found

    def expect(self, kind: type[_M], timeout: float) -> _M:
        """Next message, of that kind; errors as in `receive`."""
        return expect(self.receive(timeout), kind)

    def frame(self, timeout: float) -> bytes:
        """Next frame; errors as in `receive`."""
        start = time.perf_counter()
        found = self._next(timeout, frame=True)
        self.waited += time.perf_counter() - start
        assert isinstance(found, bytes)
        return found

    def _next(self, timeout: float, frame: bool) -> bytes | Message:
        """Next of this exchange; what an earlier one left in the channel is dropped."""
        deadline = time.monotonic() + timeout
        while True:
            data = self._channel.receive(max(0.0, deadline - time.monotonic()))
            if data.startswith(MAGIC):
                if self.talk.state in _BEFORE_FRAMES:
                    continue
                self.talk.step(Frame)
                if frame:
                    return data
                raise SyncError("expected a message, got one more frame than were announced")
            message, exchange = decode(data)
            if exchange != self.talk.exchange:
                logger.debug("dropped %s of an earlier exchange", type(message).__name__)
                continue
            self.talk.step(type(message))
            if isinstance(message, Abort):
                aborted = AbortedError(f"the trainer aborted the sync: {message.reason}")
                aborted.reseed = message.reseed
                raise aborted
            if frame:
                raise SyncError(f"expected a frame, got {type(message).__name__}")
            return message

    def report(self, error: BaseException) -> None:
        """Tell the publisher what went wrong here."""
        text = "".join(traceback.format_exception(error))
        try:
            reseed = isinstance(error, AbortedError) and error.reseed
            self.send(Failed(f"{type(error).__name__}: {error}", text, reseed))
        except SyncTimeoutError as gone:
            logger.debug("nobody to report to: %s", gone)


def expect(message: Message, kind: type[_M]) -> _M:
    """`message`, which is to be of that kind.

    Raises:
        SyncError: it is not.
    """
    if not isinstance(message, kind):
        raise SyncError(f"expected {kind.__name__}, got {type(message).__name__}; both ends must run the same version")
    return message
