"""Ray object store transport: a frame is put once, and each node that has workers for it fetches one copy.

Trainer and engine workers must be in one Ray cluster; an engine worker that is not a Ray process joins it as a driver.
What travels over the connection is a key: an object reference that leaves Ray's own messages is pinned for the life of
its owner. A small actor keeps the references by key, so that Ray counts them, and a frame is gone when all workers have
read it.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from slipstream.core.weights.errors import SyncError, SyncTimeoutError
from slipstream.core.weights.transports.lane import LanePublisher, LaneSubscriber

NAME = "ray"


def open_end(role: Literal["publisher", "subscriber"], endpoint: str, timeout: float) -> LanePublisher | LaneSubscriber:
    """Open one end of a link; see `zeromq.open_end`.

    Raises:
        SyncError: as a publisher, outside of a Ray cluster.
    """
    if role == "publisher":
        return LanePublisher(NAME, endpoint, timeout, RaySender())
    return LaneSubscriber(endpoint, timeout, RayReceiver())


class Shelf:
    """Actor: object references by key."""

    def __init__(self) -> None:
        self._refs: dict[str, list[Any]] = {}

    def place(self, key: str, refs: list[Any]) -> None:
        """Keep a list of one reference; in a list, Ray passes it on as it is."""
        self._refs[key] = refs

    def look(self, key: str) -> list[Any]:
        """The list again; empty when it was dropped."""
        return self._refs.get(key, [])

    def drop(self, key: str) -> None:
        """Let it go."""
        self._refs.pop(key, None)


class _Place(msgspec.Struct, frozen=True):
    """The offer: which cluster, and where in it the references are."""

    cluster: str
    namespace: str
    shelf: str


class RaySender:
    """`SendingLane`. Memory: three frames in the object store of each node."""

    optional = False
    window = 3

    def __init__(self) -> None:
        import ray

        if not ray.is_initialized():
            raise SyncError(
                "slipstream.weight_sync.transport=ray needs a trainer that runs in Ray; ray.init was not called here"
            )
        self._ray: Any = ray
        self._names = itertools.count()
        self._kept: dict[bytes, Any] = {}
        self._told: set[bytes] = set()
        context = ray.get_runtime_context()
        shelf = f"slipstream-{secrets.token_hex(8)}"
        self._shelf: Any = self._ray.remote(num_cpus=0)(Shelf).options(name=shelf).remote()
        self._offer = msgspec.msgpack.encode(_Place(context.gcs_address, context.namespace, shelf))

    def offers(self, peers: tuple[bytes, ...]) -> Mapping[bytes, bytes]:
        unknown = [peer for peer in peers if peer not in self._told]
        self._told.update(unknown)
        return dict.fromkeys(unknown, self._offer)

    def meet(self, gave_up: Callable[[], bool], timeout: float) -> None:
        """The cluster is there already."""

    def put(self, frame: bytes) -> bytes:
        key = str(next(self._names))
        ref = self._ray.put(np.frombuffer(frame, np.uint8))  # an array's bytes are not pickled
        self._shelf.place.remote(key, [ref])
        self._kept[key.encode()] = ref
        return key.encode()

    def push(self, gave_up: Callable[[], bool], timeout: float) -> None:
        """Workers fetch it."""

    def free(self, reference: bytes) -> None:
        del self._kept[reference]
        self._shelf.drop.remote(reference.decode())

    def rest(self) -> None:
        """Nothing is kept."""

    def end_sync(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        self._kept.clear()
        if self._ray.is_initialized():
            self._ray.kill(self._shelf)


class RayReceiver:
    """`ReceivingLane`."""

    def __init__(self) -> None:
        self._shelf: Any = None

    def accept(self, offer: bytes, timeout: float) -> None:
        import ray

        place = msgspec.msgpack.decode(offer, type=_Place)
        if not ray.is_initialized():
            ray.init(address=place.cluster, configure_logging=False, log_to_driver=False)
        try:
            self._shelf = ray.get_actor(place.shelf, namespace=place.namespace)
        except ValueError as error:  # addresses of one cluster may differ from node to node, the name is unique
            here = ray.get_runtime_context().gcs_address
            raise SyncError(f"this worker is in the Ray cluster {here}, the trainer in {place.cluster}") from error

    def fetch(self, reference: bytes, timeout: float) -> bytes:
        import ray

        deadline = time.monotonic() + timeout
        try:
            # The key may be here before the actor has heard of it: calls of two processes are not ordered.
            while not (found := ray.get(self._shelf.look.remote(reference.decode()), timeout=timeout)):
                if time.monotonic() > deadline:
                    raise SyncTimeoutError("the trainer has taken a frame back before this worker read it")
                time.sleep(0.001)
            array: Any = ray.get(found[0], timeout=max(0.0, deadline - time.monotonic()))
        except ray.exceptions.RayError as error:
            raise SyncTimeoutError(f"the trainer's frame is not in the object store: {error}") from error
        return bytes(array)

    def close(self) -> None:
        """The worker may use Ray for other things."""
        self._shelf = None
