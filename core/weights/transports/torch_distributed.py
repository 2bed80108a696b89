"""`torch.distributed` transport: frames as byte tensors, over NCCL where the trainer has it, otherwise over gloo.

The workers that get the same frames form a process group with the trainer rank, which broadcasts. The groups are
objects of their own on a store of their own: `torch.distributed.init_process_group`, the framework's default group and
its environment variables are not touched. A group is formed before the first frame for exactly its workers, kept as
long as that goes well, and formed anew after an error.

NCCL takes one process a GPU, so a trainer and an engine worker that share one (colocated) use gloo.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal

import msgspec
import torch
import torch.distributed

from slipstream.core.weights.errors import SyncTimeoutError
from slipstream.core.weights.transports.lane import LanePublisher, LaneSubscriber

logger = logging.getLogger(__name__)

NAME = "torch_distributed"
dist: Any = torch.distributed
"""Groups and stores are not in the types that torch exports."""
_LISTEN_SECONDS = 0.1
_LONGEST_PAUSE = 0.002
_EXIT_SECONDS = 2.0


class _Seat(msgspec.Struct, frozen=True):
    """The offer: a place in a group."""

    host: str
    port: int
    group: int
    rank: int
    size: int
    backend: Literal["gloo", "nccl"]
    alive: tuple[int, ...]
    """Groups of this trainer rank that still exist."""


class _Broadcast(msgspec.Struct, frozen=True):
    """The reference: what is broadcast next, in which group."""

    group: int
    size: int


def open_end(role: Literal["publisher", "subscriber"], endpoint: str, timeout: float) -> LanePublisher | LaneSubscriber:
    """Open one end of a link; see `zeromq.open_end`."""
    if role == "publisher":
        scheme, _, rest = endpoint.partition("://")
        host = rest.rpartition(":")[0].strip("[]") if scheme == "tcp" else "127.0.0.1"
        return LanePublisher(NAME, endpoint, timeout, BroadcastSender(host, shared_host=scheme == "ipc"))
    return LaneSubscriber(endpoint, timeout, BroadcastReceiver())


class Group:
    """A process group beside the default one. Rank 0 broadcasts."""

    def __init__(self, seat: _Seat, store: Any, timeout: float) -> None:
        """Form the group; returns when all members have come.

        Raises:
            RuntimeError: somebody did not come, or the backend failed.
        """
        self.seat = seat
        self._device = torch.device("cpu")
        prefixed = dist.PrefixStore(f"slipstream/{seat.group}", store)
        self._group: Any
        if seat.backend == "nccl":
            self._device = torch.device("cuda", torch.cuda.current_device())
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timedelta(seconds=timeout)
            self._group = dist.ProcessGroupNCCL(prefixed, seat.rank, seat.size, options)
            self._group.eager_connect_single_device(self._device)
        else:
            # The interface that leads to the trainer; gloo would take what the host's own name resolves to.
            device = dist.ProcessGroupGloo.create_device(hostname=_address_towards(seat.host, seat.port))
            options = dist.ProcessGroupGloo._Options()
            options._devices, options._timeout = [device], timedelta(seconds=timeout)
            self._group = dist.ProcessGroupGloo(prefixed, seat.rank, seat.size, options)

    def broadcast(self, tensor: torch.Tensor, gave_up: Callable[[], bool], timeout: float) -> torch.Tensor:
        """Send (rank 0) or receive (the others) uint8[n]; return it on the host.

        Raises:
            SyncTimeoutError: a member is gone or `gave_up`, or it took too long.
            Exception: what `gave_up` raises. After either the group is of no further use.
        """
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        options.timeout = timedelta(seconds=max(timeout, 0.001))
        on_device = tensor.to(self._device)
        try:
            with _nobody_gone():
                work = self._group.broadcast([on_device], options)
            _await(work.is_completed, gave_up, timeout)
            with _nobody_gone():
                work.wait()
        except BaseException:
            self.dismiss()
            raise
        return on_device.cpu()

    def dismiss(self) -> None:
        """Give the group up, without waiting for what is under way in it."""
        if self._group is not None:
            # The end of a gloo group waits for its operations to time out, in whoever lets go of it last: so nobody
            # but the thread may hold it.
            handed_over = [self._group]
            self._group = None
            thread = threading.Thread(target=_end, args=[handed_over], daemon=True)
            _ending.add(thread)
            thread.start()


class BroadcastSender:
    """`SendingLane`. Memory: the frame that is under way."""

    optional = False
    window = 1 << 30  # a broadcast returns when the workers have the frame

    def __init__(self, host: str, shared_host: bool) -> None:
        """Start the store that groups meet at.

        Args:
            host: address of this node that workers can reach.
            shared_host: whether workers share this host, and so perhaps a GPU.
        """
        self._host = host
        self._backend: Literal["gloo", "nccl"] = "gloo"
        if not shared_host and torch.cuda.is_available() and dist.is_nccl_available():
            self._backend = "nccl"
        self._store = dist.TCPStore(host, 0, None, True, timedelta(seconds=30), wait_for_workers=False)
        self._numbers = itertools.count(1)
        self._groups: dict[tuple[bytes, ...], Group] = {}
        self._used: set[tuple[bytes, ...]] = set()
        self._peers: tuple[bytes, ...] = ()
        self._seat: _Seat | None = None  # ours in the group that is being formed
        self._frame = torch.empty(0, dtype=torch.uint8)

    def offers(self, peers: tuple[bytes, ...]) -> Mapping[bytes, bytes]:
        peers = tuple(sorted(peers))  # they come in another order every time
        self._peers = peers
        self._used.add(peers)
        if peers in self._groups:
            return {}
        number = next(self._numbers)
        alive = (number, *(group.seat.group for group in self._groups.values()))
        seats = [
            _Seat(self._host, self._store.port, number, rank, len(peers) + 1, self._backend, alive)
            for rank in range(len(peers) + 1)
        ]
        self._seat = seats[0]
        return {peer: msgspec.msgpack.encode(seat) for peer, seat in zip(peers, seats[1:], strict=True)}

    def meet(self, gave_up: Callable[[], bool], timeout: float) -> None:
        seat = self._seat
        assert seat is not None, "offers come first"
        formed: list[Group | Exception] = []

        def form() -> None:
            try:
                formed.append(Group(seat, self._store, timeout))
            except Exception as error:
                formed.append(error)

        threading.Thread(target=form, daemon=True).start()  # it cannot be interrupted, but left
        _await(lambda: bool(formed), gave_up, timeout)
        group = formed[0]
        if isinstance(group, Exception):
            raise SyncTimeoutError(f"the process group with the engine workers did not form: {group}") from group
        self._groups[self._peers] = group

    def put(self, frame: bytes) -> bytes:
        self._frame = _bytes_tensor(frame)
        return msgspec.msgpack.encode(_Broadcast(self._groups[self._peers].seat.group, len(frame)))

    def push(self, gave_up: Callable[[], bool], timeout: float) -> None:
        try:
            self._groups[self._peers].broadcast(self._frame, gave_up, timeout)
        except BaseException:
            del self._groups[self._peers]
            raise

    def free(self, reference: bytes) -> None:
        """Nothing is kept."""

    def rest(self) -> None:
        self._frame = torch.empty(0, dtype=torch.uint8)

    def end_sync(self) -> None:
        for peers in self._groups.keys() - self._used:  # other workers have taken their places
            self._groups.pop(peers).dismiss()
        self._used.clear()

    def close(self) -> None:
        while self._groups:
            self._groups.popitem()[1].dismiss()


class BroadcastReceiver:
    """`ReceivingLane`."""

    def __init__(self) -> None:
        self._groups: dict[int, Group] = {}

    def accept(self, offer: bytes, timeout: float) -> None:
        seat = msgspec.msgpack.decode(offer, type=_Seat)
        for number in self._groups.keys() - set(seat.alive):
            self._groups.pop(number).dismiss()
        if seat.backend == "nccl" and not (torch.cuda.is_available() and dist.is_nccl_available()):
            raise RuntimeError("the trainer uses NCCL, and this worker has no CUDA device")
        store = dist.TCPStore(
            seat.host, seat.port, None, False, timedelta(seconds=max(timeout, 1.0)), wait_for_workers=False
        )
        self._groups[seat.group] = Group(seat, store, timeout)

    def fetch(self, reference: bytes, timeout: float) -> bytes:
        told = msgspec.msgpack.decode(reference, type=_Broadcast)
        if told.group not in self._groups:
            raise SyncTimeoutError("the process group of this frame is gone")
        try:
            frame = self._groups[told.group].broadcast(
                torch.empty(told.size, dtype=torch.uint8), lambda: False, timeout
            )
        except BaseException:
            del self._groups[told.group]
            raise
        return frame.numpy().tobytes()

    def close(self) -> None:
        while self._groups:
            self._groups.popitem()[1].dismiss()


@contextlib.contextmanager
def _nobody_gone() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise SyncTimeoutError(f"a member of the process group is gone: {error}") from error


def _await(done: Callable[[], bool], gave_up: Callable[[], bool], timeout: float) -> None:
    """Wait, quickly for what is quick; raise SyncTimeoutError when it takes too long or somebody gave up."""
    start = listened = time.monotonic()
    pause = 1e-5
    while not done():
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        now = time.monotonic()
        if now - start > timeout:
            raise SyncTimeoutError(f"the process group was stuck for {timeout:.5g} s")
        if now - listened > _LISTEN_SECONDS:
            listened = now
            if gave_up() and not done():
                raise SyncTimeoutError("an engine worker left the process group")


_ending: set[threading.Thread] = set()
"""Those that end a group."""


def _end(handed_over: list[Any]) -> None:
    group = handed_over.pop()
    with contextlib.suppress(Exception):
        group.abort()
    del group
    _ending.discard(threading.current_thread())


@atexit.register
def _wait_for_ends() -> None:
    """An interpreter that goes away under the end of a group is an abort of the process."""
    deadline = time.monotonic() + _EXIT_SECONDS
    for thread in list(_ending):
        thread.join(max(0.0, deadline - time.monotonic()))


def _bytes_tensor(frame: bytes) -> torch.Tensor:
    """uint8[n] over the memory of `frame`, which nobody may write to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a read-only buffer
        return torch.frombuffer(frame, dtype=torch.uint8)


def _address_towards(host: str, port: int) -> str:
    """Of this node, on the way to another; nothing is sent."""
    family = socket.getaddrinfo(host, port)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])
