"""The other end of a transport, as the conformance suite needs it: in a thread or in a process of its own."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fault_world import Weights, shard_of, trained
from sharded_trainer import Ranks
from toy_engine import ToyEngine, checkpoint

from slipstream.core.weights import (
    Publisher,
    PublisherSettings,
    Subscriber,
    SyncReport,
    SyncTimeoutError,
    TensorSpec,
    TrainerShards,
)
from slipstream.core.weights.plan import Cut, sharded
from slipstream.core.weights.transports import Connections, PublisherEndpoint, bind


def read_frames(
    address: str, name: bytes, count: int, timeout: float, connections: Connections | None = None
) -> list[bytes]:
    """A worker: say `name`, take `count` messages or frames, say that it has all."""
    kept = connections or Connections()
    with kept.joined([address], timeout) as channels:
        channels[0].send(name)
        taken = []
        for _ in range(count):
            taken.append(channels[0].receive(timeout))
            if taken[-1] == b"STOP":
                raise EOFError("told to stop")
        channels[0].send(name + b" has all")
    if connections is None:
        kept.close()
    return taken


def _join_cluster(transport: str) -> None:
    """That of the test, whatever other clusters there are on this machine."""
    if transport == "ray":
        import ray

        ray.init(address=os.environ["RAY_ADDRESS"], configure_logging=False, log_to_driver=False)


def serve_frames(transport: str, endpoint: str, sync: str) -> None:
    """A trainer: wait for one worker, then send it frames of 1 MiB for as long as it takes them."""
    _join_cluster(transport)
    from transport import frame_of

    end = bind(transport, endpoint, True, 120.0)
    end.invite(sync)
    peer, _ = end.receive(120.0)
    number = 0
    while True:
        end.send_all([peer], frame_of(number, 1 << 20))
        number += 1


def die_in_a_sync(transport: str, endpoint: str, moment: str) -> None:
    """A trainer: two syncs with the only worker (the kernels are compiled then), and its death in the third.

    Args:
        transport: and `endpoint`, see `bind`.
        endpoint: its messages are of the sync `life`, all three times.
        moment: before the third frame, or before the first Commit.
    """
    _join_cluster(transport)
    weights, end = checkpoint(), bind(transport, endpoint, True, 120.0)
    publisher = Publisher(PublisherSettings(timeout=120.0, chunk_bytes=256, level=0))
    end.invite("life")
    for step in range(2):
        publisher.sync(trained(weights, "sparse", step).items(), end, 1)
    send, send_all, frames = end.send, end.send_all, itertools.count()

    def send_or_die(peer: bytes, data: bytes) -> None:
        if moment == "commit" and b"Commit" in data:
            os.kill(os.getpid(), signal.SIGKILL)
        send(peer, data)

    def send_all_or_die(peers: Sequence[bytes], frame: bytes) -> None:
        if moment == "frame" and next(frames) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        send_all(peers, frame)

    end.send, end.send_all = send_or_die, send_all_or_die  # type: ignore[method-assign]
    publisher.sync(trained(weights, "everything", 2).items(), end, 1)


def leave_ends(transport: str, endpoint: str) -> None:
    """Leave pairs of connected ends to the garbage collector, as an engine in the trainer's own process may, and exit
    right after a pair is closed on which frames were still under way.
    """
    _join_cluster(transport)
    from transport import flood, frame_of

    for number in range(5):
        end, connections = bind(transport, f"{endpoint}{number}", True, 120.0), Connections()
        with connections.joined([end.invite()], 120.0) as channels:
            channels[0].send(b"here")
            end.receive(120.0)
        cycle: list[Any] = [end, connections, channels]
        cycle.append(cycle)
        del end, connections, channels, cycle
        gc.collect()
    end, connections = bind(transport, f"{endpoint}last", True, 120.0), Connections()
    with ThreadPoolExecutor(1) as pool, connections.joined([end.invite()], 120.0) as channels:
        channels[0].send(b"here")
        peer, _ = end.receive(120.0)
        reading = pool.submit(channels[0].receive, 120.0)
        end.send_all([peer], frame_of(0, 4 << 20))
        reading.result()
        threading.Timer(0.2, end.fail, [LookupError("the engine died")]).start()
        with contextlib.suppress(LookupError, SyncTimeoutError):
            flood(end, [peer], 4 << 20, {})
    connections.close()
    end.close()


class Trainer:
    """Publishers and subscribers over a transport, on connections that they keep."""

    def __init__(
        self,
        transport: str,
        endpoint: str,
        engines: Sequence[ToyEngine],
        ranks: int,
        timeout: float,
        workers: Sequence[tuple[Subscriber, Connections]] = (),
        **settings: Any,
    ) -> None:
        """Bind `endpoint` and a number; `workers` serve the engines where they did so before."""
        self._ends: list[PublisherEndpoint] = [bind(transport, f"{endpoint}{r}", True, timeout) for r in range(ranks)]
        self._timeout = timeout
        self._settings = PublisherSettings(timeout=timeout, chunk_bytes=256, **settings)
        self._senders: dict[int, dict[str, Any]] | None = None
        self._publishers: list[Publisher] = []
        self._engines = engines
        self._workers = workers or [(Subscriber(engine, f"rank {engine.rank}"), Connections()) for engine in engines]

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        for _, connections in self._workers:
            connections.close()
        for end in self._ends:
            end.close()

    def sync(self, weights: Weights) -> list[SyncReport]:
        """One sync of all ranks; raises the first error of a rank."""
        count = len(self._ends)
        if not self._publishers:
            self._start(weights)
        ranks = Ranks(count)
        addresses = [end.invite() for end in self._ends]

        def publish(rank: int) -> SyncReport:
            update = self._publishers[rank].stage(shard_of(weights, self._senders and self._senders[rank]))
            return self._publishers[rank].deliver(
                update, self._ends[rank], len(self._workers), lambda ready: ranks.agree(ready)
            )

        def take(worker: tuple[Subscriber, Connections]) -> None:
            with worker[1].joined(addresses, self._timeout) as channels:
                worker[0].sync(channels, self._timeout)

        with ThreadPoolExecutor(count + len(self._workers)) as pool:
            taking = [pool.submit(take, worker) for worker in self._workers]
            reports = [pool.submit(publish, rank) for rank in range(count)]
            errors = [report.exception() for report in reports]
            for future in taking:
                future.exception()
        if error := next((error for error in errors if error is not None), None):
            raise error
        return [report.result() for report in reports]

    def damage_next_frame(self) -> None:
        """Flip a bit of the next frame, behind the checksum."""
        end = self._ends[0]
        send_all = end.send_all

        def damaging(peers: Sequence[bytes], frame: bytes) -> None:
            end.send_all = send_all  # type: ignore[method-assign]
            send_all(peers, frame[:-1] + bytes([frame[-1] ^ 1]))

        end.send_all = damaging  # type: ignore[method-assign]

    def holds(self, weights: Weights) -> bool:
        """Whether every engine holds what a dense load of `weights` gives."""
        return all(engine.checksums() == engine.densely_loaded(weights) for engine in self._engines)

    def _start(self, weights: Weights) -> None:
        count = len(self._ends)
        if count == 1:
            self._publishers = [Publisher(self._settings)]
            return
        specs = tuple(TensorSpec.of(name, tensor) for name, tensor in weights.items())
        self._senders = {r: {s.name: sharded(s.shape, [Cut(0, count, r)]) for s in specs} for r in range(count)}
        self._publishers = [
            Publisher(self._settings, TrainerShards(rank, 7, specs, self._senders)) for rank in range(count)
        ]


__all__ = ["Trainer", "read_frames", "serve_frames", "trained"]
