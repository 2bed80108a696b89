"""Shared memory transport, for trainer and engine workers on one host: every worker reads the same copy of a frame.

Frames lie in anonymous files in memory (`memfd_create`), which workers open as `/proc/<pid>/fd/<number>`. Such a file
has no name, so nothing is left behind whichever side dies and however, no resource tracker has to know it, and the size
of `/dev/shm` (64 MB in many containers) does not matter. Written and read with `pwrite` and `pread`: a host that is out
of memory is an error there, not a SIGBUS. A worker that cannot see the trainer's files (another host, container or
user) gets its frames over the connection instead.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from slipstream.core.weights.errors import SyncTimeoutError
from slipstream.core.weights.transports.lane import LanePublisher, LaneSubscriber

NAME = "shared_memory"
_WINDOW = 3
_KEPT_BYTES = 16 << 20
"""Memory that a file keeps between syncs; frames of a delta are often smaller, and new pages cost time."""


class _Files(msgspec.Struct, frozen=True):
    """The offer: where the files of a trainer are."""

    pid: int
    numbers: tuple[int, ...]
    name: str


class _Place(msgspec.Struct, frozen=True):
    """The reference: which file, and how many bytes of it."""

    file: int
    size: int


def open_end(role: Literal["publisher", "subscriber"], endpoint: str, timeout: float) -> LanePublisher | LaneSubscriber:
    """Open one end of a link; see `zeromq.open_end`."""
    if role == "publisher":
        return LanePublisher(NAME, endpoint, timeout, SharedMemorySender())
    return LaneSubscriber(endpoint, timeout, SharedMemoryReceiver())


class SharedMemorySender:
    """`SendingLane`. Memory: three frames during a sync, 48 MiB between syncs."""

    optional = True
    window = _WINDOW

    def __init__(self) -> None:
        name = f"slipstream-{secrets.token_hex(8)}"
        self._files = [os.memfd_create(name) for _ in range(_WINDOW)]
        self._free = list(range(_WINDOW))
        self._told: set[bytes] = set()
        self._offer = msgspec.msgpack.encode(_Files(os.getpid(), tuple(self._files), name))

    def offers(self, peers: tuple[bytes, ...]) -> Mapping[bytes, bytes]:
        unknown = [peer for peer in peers if peer not in self._told]
        self._told.update(unknown)
        return dict.fromkeys(unknown, self._offer)

    def meet(self, gave_up: Callable[[], bool], timeout: float) -> None:
        """The files are there already."""

    def put(self, frame: bytes) -> bytes:
        index = self._free[-1]
        view, written = memoryview(frame), 0
        while written < len(frame):
            written += os.pwrite(self._files[index], view[written:], written)
        self._free.pop()  # not before: the host may be out of memory
        return msgspec.msgpack.encode(_Place(index, len(frame)))

    def push(self, gave_up: Callable[[], bool], timeout: float) -> None:
        """Workers fetch it."""

    def free(self, reference: bytes) -> None:
        self._free.append(msgspec.msgpack.decode(reference, type=_Place).file)

    def rest(self) -> None:
        for file in self._files:
            if os.fstat(file).st_size > _KEPT_BYTES:
                os.ftruncate(file, _KEPT_BYTES)

    def end_sync(self) -> None:
        """Workers can use the same files in the next one."""

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())


class SharedMemoryReceiver:
    """`ReceivingLane`."""

    def __init__(self) -> None:
        self._files: list[int] = []

    def accept(self, offer: bytes, timeout: float) -> None:
        self.close()
        told = msgspec.msgpack.decode(offer, type=_Files)
        for number in told.numbers:
            path = f"/proc/{told.pid}/fd/{number}"
            # The process of that number may be another one where the worker lives.
            if told.name not in os.readlink(path):
                self.close()
                raise FileNotFoundError(f"{path} is not the trainer's, which runs in another container")
            self._files.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def fetch(self, reference: bytes, timeout: float) -> bytes:
        place = msgspec.msgpack.decode(reference, type=_Place)
        frame = os.pread(self._files[place.file], place.size, 0)
        while len(frame) < place.size:  # one call reads 2 GiB at most
            more = os.pread(self._files[place.file], place.size - len(frame), len(frame))
            if not more:
                raise SyncTimeoutError("the trainer has taken a frame back before this worker read it")
            frame += more
        return frame

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())
