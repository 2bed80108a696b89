"""Frames on a way of their own, a lane, beside a ZeroMQ connection that carries the messages.

A frame goes into the lane once, whoever gets it, and a reference to it follows over each worker's connection, in order
with the messages. A worker is introduced to the lane before its first frame, and says of each frame that it has it;
no more than `SendingLane.window` frames are in the lane at a time. What the lane is made of is all that
`shared_memory`, `ray_objects` and `torch_distributed` add to this.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from slipstream.core.weights.errors import SyncError, SyncTimeoutError
from slipstream.core.weights.transports.address import Address
from slipstream.core.weights.transports.zeromq import ZmqPublisherChannel, ZmqSubscriberChannel

logger = logging.getLogger(__name__)

_MARK = b"SLPLANE\0"
"""In front of what the lanes' ends say to each other; control messages have a 64-bit checksum in this place."""
_LAST_WORDS_SECONDS = 1.0


class SendingLane(Protocol):
    """The trainer's end of a lane."""

    optional: bool
    """Whether workers that cannot use the lane get their frames over the connection; otherwise it is an error."""
    window: int
    """Frames that may be in the lane at a time."""

    def offers(self, peers: tuple[bytes, ...]) -> Mapping[bytes, bytes]:
        """What each worker must be told before a frame can go to exactly these; empty when all have been."""

    def meet(self, gave_up: Callable[[], bool], timeout: float) -> None:
        """After the offers were sent: this end's part of setting the lane up; arguments and errors as in `push`."""

    def put(self, frame: bytes) -> bytes:
        """Place a frame for the workers of the last `offers`; return the reference that they fetch it by."""

    def push(self, gave_up: Callable[[], bool], timeout: float) -> None:
        """After the references were sent: move the frame to the workers, where it does not wait to be fetched.

        Args:
            gave_up: whether a worker has said something, which means that it takes no more frames.
            timeout: seconds.

        Raises:
            SyncTimeoutError: a worker is gone, gave up, or did not take the frame in time.
        """

    def free(self, reference: bytes) -> None:
        """Every worker has the frame, or none will fetch it any more."""

    def rest(self) -> None:
        """No frame is in the lane, and none may come for long: give memory back. Called often."""

    def end_sync(self) -> None:
        """No frame of the last sync will be fetched any more; called when the next one begins."""

    def close(self) -> None:
        """Release everything."""


class ReceivingLane(Protocol):
    """A worker's end of a lane."""

    def accept(self, offer: bytes, timeout: float) -> None:
        """Prepare for frames.

        Raises:
            Exception: this worker cannot use the lane.
        """

    def fetch(self, reference: bytes, timeout: float) -> bytes:
        """A frame.

        Raises:
            SyncTimeoutError: the trainer is gone, gave up, or did not send it in `timeout` seconds.
        """

    def close(self) -> None:
        """Release everything."""


class Offer(msgspec.Struct, tag=True, frozen=True):
    """Trainer to worker: what the lane is."""

    number: int
    content: bytes


class Answer(msgspec.Struct, tag=True, frozen=True):
    """Worker to trainer: whether it can use the lane."""

    number: int
    obstacle: str = ""


class Reference(msgspec.Struct, tag=True, frozen=True):
    """Trainer to worker: the next frame is in the lane."""

    number: int
    content: bytes


class Fetched(msgspec.Struct, tag=True, frozen=True):
    """Worker to trainer: it has the frame."""

    number: int


_decoder = msgspec.msgpack.Decoder(Offer | Answer | Reference | Fetched)


def _pack(word: Offer | Answer | Reference | Fetched) -> bytes:
    return _MARK + msgspec.msgpack.encode(word)


class LanePublisher:
    """A `PublisherEndpoint` whose frames take a lane."""

    def __init__(self, name: str, endpoint: str, timeout: float, lane: SendingLane) -> None:
        """Bind.

        Args:
            name: of the transport.
            endpoint: of the connection that carries the messages.
            timeout: seconds that sending a frame may take.
            lane: closed with this.

        Raises:
            zmq.ZMQError: the endpoint cannot be bound.
        """
        self._name = name
        self._timeout = timeout
        self._lane = lane
        self._control = ZmqPublisherChannel(endpoint, timeout)
        self._heard: deque[tuple[bytes, bytes]] = deque()
        self._asked = 0
        """Number of the last offers."""
        self._answers: dict[bytes, str] = {}
        """What workers said to them: an obstacle, or nothing."""
        self._without: set[bytes] = set()
        """Workers that get their frames over the connection."""
        self._count = 0
        self._unread: dict[int, tuple[bytes, set[bytes]]] = {}
        """Frames in the lane: the reference, and who has still to fetch it."""

    @property
    def endpoint(self) -> str:
        """The address that was bound."""
        return self._control.endpoint

    def invite(self, sync: str = "") -> str:
        self._heard.clear()
        self._answers.clear()
        for reference, _ in self._unread.values():
            self._lane.free(reference)
        self._unread.clear()
        self._lane.rest()
        self._lane.end_sync()
        return str(Address.parse(self._control.invite(sync))._replace(transport=self._name))

    def send(self, peer: bytes, data: bytes) -> None:
        self._control.send(peer, data)

    def send_all(self, peers: Sequence[bytes], frame: bytes) -> None:
        peers = tuple(peers)
        deadline = time.monotonic() + self._timeout
        taking = self._introduced(peers, deadline)
        self._control.send_all([peer for peer in peers if peer in self._without], frame)
        if not taking:
            return
        self._wait(lambda: len(self._unread) < self._lane.window, self._readers, deadline, "take the frames before it")
        self._count += 1
        reference = self._lane.put(frame)
        self._unread[self._count] = reference, set(taking)
        word = _pack(Reference(self._count, reference))
        for peer in taking:
            self._control.send(peer, word)
        self._lane.push(lambda: self._gave_up(self._readers), self._timeout)

    def receive(self, timeout: float) -> tuple[bytes, bytes]:
        deadline, left = time.monotonic() + timeout, timeout
        while not self._heard:
            self._listen(left)
            left = max(0.0, deadline - time.monotonic())
        if not self._unread:  # whoever waits for messages has sent its frames
            self._lane.rest()
        return self._heard.popleft()

    def fail(self, error: BaseException) -> None:
        self._control.fail(error)

    def close(self) -> None:
        self._control.close()
        self._lane.close()

    def _introduced(self, peers: tuple[bytes, ...], deadline: float) -> tuple[bytes, ...]:
        """Those of `peers` that take the lane, after all have been asked."""
        while True:
            taking = tuple(peer for peer in peers if peer not in self._without)
            offers = self._lane.offers(taking) if taking else {}
            if not offers or self._accepted(offers, deadline):
                return taking

    def _accepted(self, offers: Mapping[bytes, bytes], deadline: float) -> bool:
        """Ask the workers; whether all can use the lane. Those that cannot will not be asked again."""
        self._count += 1
        self._asked = self._count
        self._answers.clear()
        for peer, content in offers.items():
            self._control.send(peer, _pack(Offer(self._asked, content)))

        def waiting() -> set[bytes]:
            return set(offers) - self._answers.keys()

        def gave_up() -> bool:
            return self._gave_up(waiting) or any(self._answers.values())

        silent: SyncTimeoutError | None = None
        try:
            self._lane.meet(gave_up, max(0.0, deadline - time.monotonic()))
            self._wait(lambda: not waiting(), waiting, deadline, "join the transport")
        except SyncTimeoutError as error:
            silent = error
        refused = {peer: obstacle for peer, obstacle in self._answers.items() if obstacle}
        if refused:
            self._refuse(refused)
        elif silent is not None:
            raise silent
        return not refused

    def _refuse(self, obstacles: Mapping[bytes, str]) -> None:
        """Some workers cannot use the lane."""
        text = f"{len(obstacles)} engine workers cannot use transport {self._name}: {next(iter(obstacles.values()))}"
        if not self._lane.optional:
            raise SyncError(f"{text}; choose another slipstream.weight_sync.transport, such as zeromq")
        logger.warning("%s. They get their frames over the connection.", text)
        self._without.update(obstacles)

    def _wait(self, ready: Callable[[], bool], owing: Callable[[], set[bytes]], deadline: float, what: str) -> None:
        """Listen until `ready`; see `_gave_up` for `owing`."""
        while not ready():
            left = deadline - time.monotonic()
            try:
                if left > 0:
                    self._listen(left)
            except SyncTimeoutError:
                left = 0
            if left <= 0 or (not ready() and self._said(owing())):
                raise SyncTimeoutError(f"engine workers stopped reading their frames: they did not {what}")

    def _gave_up(self, owing: Callable[[], set[bytes]]) -> bool:
        """Whether a worker that owes an answer or has to fetch a frame has said something else: it never will."""
        try:
            while True:
                self._listen(0.0)
        except SyncTimeoutError:
            return self._said(owing())

    def _said(self, owing: set[bytes]) -> bool:
        return any(peer in owing for peer, _ in self._heard)

    def _readers(self) -> set[bytes]:
        """Workers that have to fetch a frame."""
        return {peer for _, readers in self._unread.values() for peer in readers}

    def _listen(self, timeout: float) -> None:
        """Take in one thing that a worker says, if it says something in time."""
        peer, data = self._control.receive(timeout)
        if not data.startswith(_MARK):
            self._heard.append((peer, data))
            return
        word = _decoder.decode(data[len(_MARK) :])
        if isinstance(word, Answer):
            if word.number == self._asked:
                self._answers[peer] = word.obstacle
        elif isinstance(word, Fetched) and word.number in self._unread:
            reference, readers = self._unread[word.number]
            readers.discard(peer)
            if not readers:
                del self._unread[word.number]
                self._lane.free(reference)


class LaneSubscriber:
    """A `SubscriberEndpoint` whose frames come over a lane."""

    def __init__(self, endpoint: str, timeout: float, lane: ReceivingLane) -> None:
        """Connect.

        Args:
            endpoint: of the connection that carries the messages.
            timeout: seconds that a send may block.
            lane: closed with this.
        """
        self._control = ZmqSubscriberChannel(endpoint, timeout)
        self._lane = lane

    def join(self, sync: str, timeout: float) -> None:
        self._control.join(sync, timeout)

    def send(self, data: bytes) -> None:
        self._control.send(data)

    def receive(self, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            data = self._control.receive(left)
            if not data.startswith(_MARK):
                return data
            word = _decoder.decode(data[len(_MARK) :])
            left = max(0.0, deadline - time.monotonic())
            if isinstance(word, Offer):
                self._control.send(_pack(Answer(word.number, self._obstacle(word.content, left))))
            elif isinstance(word, Reference):
                try:
                    frame = self._lane.fetch(word.content, left)
                except SyncTimeoutError as gone:
                    return self._last_words(gone)
                self._control.send(_pack(Fetched(word.number)))
                return frame

    def close(self) -> None:
        self._control.close()
        self._lane.close()

    def _obstacle(self, offer: bytes, timeout: float) -> str:
        """Why this worker cannot use the lane; empty when it can."""
        try:
            self._lane.accept(offer, timeout)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def _last_words(self, gone: SyncTimeoutError) -> bytes:
        """What the trainer has said about a frame that did not come; raises `gone` if nothing."""
        while True:
            try:
                data = self._control.receive(_LAST_WORDS_SECONDS)
            except SyncTimeoutError:
                raise gone from None
            if not data.startswith(_MARK):
                return data
