"""What every transport must pass. A test module subclasses `TransportConformance` and sets `name`."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from socket import AF_UNIX, socket
from typing import Any

import pytest
import zmq
from toy_engine import ToyEngine, checkpoint
from transport_peers import Trainer, die_in_a_sync, leave_ends, read_frames, serve_frames, trained

from slipstream.core.weights import EngineFailedError, Subscriber, SyncError, SyncTimeoutError
from slipstream.core.weights.transports import Address, Connections, PublisherEndpoint, bind

TIMEOUT = 20.0
SHORT = 2.0
"""Seconds, where the test waits for a timeout."""
LONG_WAIT = 120.0


def frame_of(number: int, size: int) -> bytes:
    """`size` bytes that name their frame and are not all the same; looks like a frame of the wire format."""
    return b"SLPS" + (number.to_bytes(4, "little") * (size // 4 + 1))[:size]


def flood(end: PublisherEndpoint, peers: Sequence[bytes], size: int, at: dict[int, Callable[[], None]]) -> None:
    """Send frames for ever; `at` holds what to do after some of them."""
    for number in itertools.count():
        end.send_all(peers, frame_of(number, size))
        if number in at:
            at[number]()


def meet(end: PublisherEndpoint, count: int) -> dict[bytes, bytes]:
    """The first message of each of `count` workers, and its address, in the order of the messages."""
    return dict(sorted((said, peer) for peer, said in (end.receive(LONG_WAIT) for _ in range(count))))


class TransportConformance:
    """The suite. Workers are threads, and processes where one has to die."""

    name: str

    @pytest.fixture
    def endpoint(self, tmp_path_factory: pytest.TempPathFactory) -> str:
        return f"ipc://{tmp_path_factory.mktemp('t', numbered=True)}/z"

    @pytest.fixture
    def workers(self) -> Iterator[ThreadPoolExecutor]:
        with ThreadPoolExecutor(8) as pool:
            yield pool

    @contextmanager
    def bound(self, endpoint: str, timeout: float = TIMEOUT) -> Iterator[PublisherEndpoint]:
        end = bind(self.name, endpoint, True, timeout)
        try:
            yield end
        finally:
            end.close()

    @contextmanager
    def spawned(self, target: Callable[..., None], *arguments: Any) -> Iterator[multiprocessing.process.BaseProcess]:
        process = multiprocessing.get_context("spawn").Process(target=target, args=arguments, daemon=True)
        process.start()
        try:
            yield process
        finally:
            process.kill()
            process.join()

    def test_messages_and_frames_arrive_in_order(self, endpoint, workers):
        """To two workers, some frames to both and some to one, more than fit in any queue."""
        with self.bound(endpoint) as end:
            address = end.invite()
            readers = [workers.submit(read_frames, address, b"w%d" % i, 45, TIMEOUT) for i in range(2)]
            peers = meet(end, 2)
            assert list(peers) == [b"w0", b"w1"]
            wanted: dict[bytes, list[bytes]] = {name: [] for name in peers}
            for number in range(40):
                if number % 8 == 0:
                    for name in wanted:
                        end.send(peers[name], b"message %d to %s" % (number, name))
                        wanted[name].append(b"message %d to %s" % (number, name))
                to = [[b"w0", b"w1"], [b"w1", b"w0"], [b"w0", b"w1"]][number % 3]
                frame = frame_of(number, 10 ** (number % 6))
                end.send_all(tuple(peers[name] for name in to), frame)
                for name in to:
                    wanted[name].append(frame)
            for name, reader in zip(wanted, readers, strict=True):
                assert reader.result(LONG_WAIT) == wanted[name]
            assert sorted(end.receive(TIMEOUT)[1] for _ in range(2)) == [b"w0 has all", b"w1 has all"]

    def test_groups_of_workers_take_turns(self, endpoint, workers):
        with self.bound(endpoint) as end:
            address = end.invite()
            counts = [4, 4, 8]
            readers = [workers.submit(read_frames, address, b"w%d" % i, counts[i], TIMEOUT) for i in range(3)]
            peers = [
                peer for _, peer in sorted((said, peer) for peer, said in (end.receive(LONG_WAIT) for _ in counts))
            ]
            groups = [[peers[0], peers[2]], [peers[1], peers[2]]]
            for number in range(8):
                end.send_all(groups[number % 2], frame_of(number, 100_000))
            assert readers[0].result(LONG_WAIT) == [frame_of(n, 100_000) for n in (0, 2, 4, 6)]
            assert readers[1].result(LONG_WAIT) == [frame_of(n, 100_000) for n in (1, 3, 5, 7)]
            assert readers[2].result(LONG_WAIT) == [frame_of(n, 100_000) for n in range(8)]

    def test_a_large_frame(self, endpoint, workers):
        with self.bound(endpoint) as end:
            reader = workers.submit(read_frames, end.invite(), b"w", 1, LONG_WAIT)
            peer, _ = end.receive(LONG_WAIT)
            frame = frame_of(1, (96 << 20) + 3)
            end.send_all([peer], frame)
            assert reader.result(LONG_WAIT) == [frame]

    def test_a_worker_that_is_done_does_not_end_the_frame_of_a_slower_one(self, endpoint, workers):
        def late(address: str) -> bytes:
            with Connections().joined([address], TIMEOUT) as channels:
                channels[0].send(b"slow")
                time.sleep(1.0)
                return channels[0].receive(TIMEOUT)

        with self.bound(endpoint) as end:
            address = end.invite()
            quick, slow = workers.submit(read_frames, address, b"quick", 1, TIMEOUT), workers.submit(late, address)
            end.send_all(list(meet(end, 2).values()), frame_of(1, 4 << 20))
            assert end.receive(TIMEOUT)[1] == b"quick has all"
            assert quick.result(TIMEOUT) == [slow.result(TIMEOUT)] == [frame_of(1, 4 << 20)]

    def test_waiting_ends_with_a_timeout(self, endpoint):
        with self.bound(endpoint, SHORT) as end:
            address = end.invite()
            with pytest.raises(SyncTimeoutError, match=r"0\.3 s"):
                end.receive(0.3)
            connections = Connections()
            with pytest.raises(SyncTimeoutError), connections.joined([address], SHORT) as channels:
                channels[0].receive(0.3)

    def test_a_worker_that_does_not_read_is_a_timeout(self, endpoint):
        connections = Connections()
        with self.bound(endpoint, SHORT) as end, connections.joined([end.invite()], SHORT) as channels:
            channels[0].send(b"here")
            peer, _ = end.receive(TIMEOUT)
            start = time.monotonic()
            with pytest.raises(SyncTimeoutError):
                flood(end, [peer], 4 << 20, {})
            assert time.monotonic() - start < 5 * SHORT
        connections.close()

    def test_a_worker_that_gives_up_is_heard(self, endpoint, workers):
        """Its last words come through, however many frames are still to be sent, and at once."""

        def leave(address: str) -> None:
            with Connections().joined([address], TIMEOUT) as channels:
                channels[0].send(b"here")
                channels[0].receive(TIMEOUT)
                channels[0].send(b"I failed")
                raise ZeroDivisionError

        with self.bound(endpoint, TIMEOUT) as end:
            leaving = workers.submit(leave, end.invite())
            peer, _ = end.receive(LONG_WAIT)
            start = time.monotonic()
            with pytest.raises(SyncTimeoutError):
                flood(end, [peer], 4 << 20, {})
            assert end.receive(TIMEOUT) == (peer, b"I failed")
            assert time.monotonic() - start < TIMEOUT / 2
            with pytest.raises(ZeroDivisionError):
                leaving.result(LONG_WAIT)

    def test_a_worker_that_dies_and_its_successor(self, endpoint, workers):
        timeout = 8.0  # the time that some transports take to notice
        with self.bound(endpoint, timeout) as end:
            address = end.invite()
            with self.spawned(read_frames, address, b"mortal", 1000, LONG_WAIT) as process:
                survivor = workers.submit(read_frames, address, b"survivor", 1000, TIMEOUT)
                peers = [end.receive(LONG_WAIT)[0] for _ in range(2)]
                killed: list[float] = []

                def kill() -> None:
                    process.kill()
                    killed.append(time.monotonic())

                with pytest.raises(SyncTimeoutError):
                    flood(end, peers, 1 << 20, {3: kill})
                assert time.monotonic() - killed[0] < 2 * timeout
            for peer in peers:
                try:
                    end.send(peer, b"STOP")
                except SyncTimeoutError:
                    continue
            survivor.exception(LONG_WAIT)
            address = end.invite()
            readers = [workers.submit(read_frames, address, b"w%d" % i, 3, TIMEOUT) for i in range(2)]
            peers = [end.receive(LONG_WAIT)[0] for _ in range(2)]
            for number in range(3):
                end.send_all(peers, frame_of(number, 1 << 20))
            for reader in readers:
                assert reader.result(LONG_WAIT) == [frame_of(n, 1 << 20) for n in range(3)]

    def test_a_trainer_that_dies_and_its_successor(self, endpoint, workers):
        connections = Connections()

        def take(process: multiprocessing.process.BaseProcess) -> None:
            with connections.joined([self.address(endpoint, "first")], TIMEOUT) as channels:
                channels[0].send(b"here")
                for number in itertools.count():
                    assert channels[0].receive(SHORT if number > 3 else LONG_WAIT) == frame_of(number, 1 << 20)
                    if number == 3:
                        process.kill()

        with self.spawned(serve_frames, self.name, endpoint, "first") as process:
            with pytest.raises(SyncTimeoutError):
                take(process)
            process.join(TIMEOUT)
            assert process.exitcode == -signal.SIGKILL
        with self.bound(endpoint) as end:
            end.invite("second")
            reader = workers.submit(read_frames, self.address(endpoint, "second"), b"here", 5, LONG_WAIT, connections)
            peer, _ = end.receive(LONG_WAIT)
            for number in range(5):
                end.send_all([peer], frame_of(number, 1 << 20))
            assert reader.result(LONG_WAIT) == [frame_of(n, 1 << 20) for n in range(5)]
        connections.close()

    def test_a_trainer_killed_in_a_sync_leaves_the_engine_as_it_was(self, endpoint):
        self.kill_in_a_sync(endpoint, "frame")

    def kill_in_a_sync(self, endpoint: str, moment: str) -> None:
        """See `die_in_a_sync`; then another run, on the socket that was left behind, goes on with the engine."""
        engine, connections = ToyEngine(), Connections()
        subscriber = Subscriber(engine, "worker")

        def take(timeout: float) -> None:
            with connections.joined([self.address(f"{endpoint}0", "life")], timeout) as channels:
                subscriber.sync(channels, timeout)

        with self.spawned(die_in_a_sync, self.name, f"{endpoint}0", moment) as process:
            for _ in range(2):
                take(LONG_WAIT)
            before = engine.checksums()
            with pytest.raises(SyncTimeoutError):
                take(SHORT)
            process.join(TIMEOUT)
            assert process.exitcode == -signal.SIGKILL
        assert engine.checksums() == before == engine.densely_loaded(trained(checkpoint(), "sparse", 1))
        with Trainer(self.name, endpoint, [engine], 1, TIMEOUT, workers=[(subscriber, connections)]) as trainer:
            weights = checkpoint()
            for step in range(2):
                weights = trained(weights, "sparse", step)
                assert [report.seeded_workers for report in trainer.sync(weights)] == [1 - step]
                assert trainer.holds(weights)

    def test_ends_that_nobody_closes_do_not_hang_the_process(self, endpoint):
        with self.spawned(leave_ends, self.name, endpoint) as process:
            process.join(60)
            assert process.exitcode == 0

    def address(self, endpoint: str, sync: str) -> str:
        return str(Address(self.name, endpoint, sync))

    def test_a_connection_outlives_a_trainer_between_two_syncs(self, endpoint, workers):
        """The worker keeps its end; the next trainer binds the same endpoint."""
        connections = Connections()
        for _ in range(2):
            with self.bound(endpoint) as end:
                reader = workers.submit(read_frames, end.invite(), b"w", 2, TIMEOUT, connections)
                peer, _ = end.receive(LONG_WAIT)
                for number in range(2):
                    end.send_all([peer], frame_of(number, 1000))
                assert reader.result(LONG_WAIT) == [frame_of(n, 1000) for n in range(2)]
        connections.close()

    def test_what_an_earlier_sync_left_is_not_seen(self, endpoint, workers):
        """On kept connections: a worker's message, a message to it, and frames that it never read."""
        connections = Connections()
        with self.bound(endpoint) as end:
            with connections.joined([end.invite()], TIMEOUT) as channels:
                channels[0].send(b"here")
                peer, _ = end.receive(TIMEOUT)
                channels[0].send(b"late")
                end.send(peer, b"left over")
            for sync in range(4):
                reader = workers.submit(read_frames, end.invite(), b"w%d" % sync, 2, TIMEOUT, connections)
                now, said = end.receive(LONG_WAIT)
                assert said == b"w%d" % sync
                assert now == peer, "the same connection"
                for number in range(2):
                    end.send_all([now], frame_of(number, 50_000))
                end.send(now, b"left over")
                assert reader.result(LONG_WAIT) == [frame_of(n, 50_000) for n in range(2)]
                # `w has all` is left in the trainer's end
        connections.close()

    def test_a_worker_that_joins_late(self, endpoint, workers):
        with self.bound(endpoint) as end:
            kept = [Connections(), Connections()]
            for count in (1, 2):
                address = end.invite()
                readers = [
                    workers.submit(read_frames, address, b"w", 2, TIMEOUT, connections) for connections in kept[:count]
                ]
                peers = [end.receive(LONG_WAIT)[0] for _ in range(count)]
                for number in range(2):
                    end.send_all(peers, frame_of(number, 1000))
                for reader in readers:
                    assert reader.result(LONG_WAIT) == [frame_of(n, 1000) for n in range(2)]
            for connections in kept:
                connections.close()

    def test_a_failed_engine_call_ends_the_wait_and_the_next_sync_starts_anew(self, endpoint, workers):
        with self.bound(endpoint) as end:
            end.invite()
            timer = threading.Timer(0.3, end.fail, [RuntimeError("engine core died")])
            timer.start()
            start = time.monotonic()
            with pytest.raises(RuntimeError, match="engine core died"):
                end.receive(LONG_WAIT)
            assert time.monotonic() - start < 10
            reader = workers.submit(read_frames, end.invite(), b"w", 1, TIMEOUT)
            peer, _ = end.receive(LONG_WAIT)
            end.send_all([peer], frame_of(0, 9))
            assert reader.result(LONG_WAIT) == [frame_of(0, 9)]

    def test_a_failed_engine_call_ends_the_frames_and_the_next_sync_starts_anew(self, endpoint, workers):
        """The worker reads no more, as its engine is dead; its successor must not wait for what was under way."""
        connections = Connections()
        with self.bound(endpoint) as end:
            with connections.joined([end.invite()], TIMEOUT) as channels:
                channels[0].send(b"here")
                peer, _ = end.receive(TIMEOUT)
                reading = workers.submit(channels[0].receive, TIMEOUT)
                died = LookupError("engine core died")
                start = time.monotonic()
                with pytest.raises((LookupError, SyncTimeoutError)) as raised:
                    flood(end, [peer], 4 << 20, {0: lambda: threading.Timer(0.3, end.fail, [died]).start()})
                assert died in (raised.value, raised.value.__cause__)
                assert time.monotonic() - start < TIMEOUT / 2
                assert reading.result(TIMEOUT) == frame_of(0, 4 << 20)
            connections.close()
            reader = workers.submit(read_frames, end.invite(), b"w", 3, TIMEOUT)
            peer, _ = end.receive(LONG_WAIT)
            start = time.monotonic()
            for number in range(3):
                end.send_all([peer], frame_of(number, 4 << 20))
            assert reader.result(LONG_WAIT) == [frame_of(n, 4 << 20) for n in range(3)]
            assert time.monotonic() - start < TIMEOUT / 2

    def test_whoever_else_connects_is_not_heard(self, endpoint, workers):
        """Another program, or a worker of a run that had this address before: neither stops a sync."""
        with self.bound(endpoint) as end, zmq.Context() as context:
            address = end.invite()
            strangers = [context.socket(kind) for kind in (zmq.DEALER, zmq.REQ)]
            for stranger in strangers:
                stranger.connect(Address.parse(address).endpoint)
                stranger.linger = 0
            reader = workers.submit(read_frames, address, b"w", 3, TIMEOUT)
            for parts in ([b"x"], [b""], [b"a", b"b", b"c"], [b"other", b"Hello"]):
                strangers[0].send_multipart(parts)
            strangers[1].send(b"GET / HTTP/1.1")
            with socket(AF_UNIX) as plain:
                plain.connect(Address.parse(address).endpoint.removeprefix("ipc://"))
                plain.send(b"GET / HTTP/1.1\r\n\r\n")
                time.sleep(0.2)
                peer, said = end.receive(LONG_WAIT)
                assert said == b"w"
                for number in range(3):
                    end.send_all([peer], frame_of(number, 1 << 20))
                assert reader.result(LONG_WAIT) == [frame_of(n, 1 << 20) for n in range(3)]
            assert end.receive(TIMEOUT) == (peer, b"w has all")
            for stranger in strangers:
                stranger.close()

    def test_nothing_is_left_open(self, endpoint, workers):
        def once() -> None:
            connections = Connections()
            with self.bound(endpoint) as end:
                reader = workers.submit(read_frames, end.invite(), b"w", 3, TIMEOUT, connections)
                peer, _ = end.receive(LONG_WAIT)
                for number in range(3):
                    end.send_all([peer], frame_of(number, 1 << 20))
                reader.result(LONG_WAIT)
            connections.close()

        def open_files() -> int:
            return len(os.listdir("/proc/self/fd"))

        for _ in range(2):
            once()
        before = open_files()
        for _ in range(5):
            once()
        deadline = time.monotonic() + 10
        while open_files() > before + 4 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert open_files() <= before + 4

    @pytest.mark.parametrize("ranks", [1, 2])
    def test_engines_hold_what_was_sent_bit_for_bit(self, endpoint, ranks):
        """A dense seed, deltas, everything changed; two trainer ranks feed each of two workers."""
        with Trainer(self.name, endpoint, [ToyEngine(0, 2), ToyEngine(1, 2)], ranks, TIMEOUT) as trainer:
            weights = checkpoint()
            for step, how in enumerate(["nothing", "sparse", "nothing", "special", "everything"]):
                weights = trained(weights, how, step)
                reports = trainer.sync(weights)
                assert trainer.holds(weights)
                assert [report.seeded_workers for report in reports] == [2 if step == 0 else 0] * ranks

    @pytest.mark.parametrize("ranks", [1, 2])
    def test_workers_of_other_layouts_get_other_frames(self, endpoint, ranks):
        with Trainer(
            self.name, endpoint, [ToyEngine(0, 1), ToyEngine(0, 2), ToyEngine(1, 2)], ranks, TIMEOUT
        ) as trainer:
            weights = checkpoint()
            for step in range(3):
                weights = trained(weights, "sparse", step)
                trainer.sync(weights)
                assert trainer.holds(weights)

    def test_a_worker_that_fails_stops_the_update_and_the_next_sync_works(self, endpoint):
        engines = [ToyEngine(0, 2), ToyEngine(1, 2)]
        with Trainer(self.name, endpoint, engines, 1, TIMEOUT) as trainer:
            old = checkpoint()
            trainer.sync(old)
            engines[1].fail_after = 0
            new = trained(old, "everything", 1)
            with pytest.raises(EngineFailedError, match="loader refuses"):
                trainer.sync(new)
            assert trainer.holds(old)
            engines[1].fail_after = None
            trainer.sync(new)
            assert trainer.holds(new)

    def test_a_frame_that_is_damaged_on_the_way_is_refused_and_the_next_sync_works(self, endpoint):
        with Trainer(self.name, endpoint, [ToyEngine(0, 2), ToyEngine(1, 2)], 1, TIMEOUT) as trainer:
            old = checkpoint()
            trainer.sync(old)
            new = trained(old, "sparse", 1)
            trainer.damage_next_frame()
            with pytest.raises(SyncError, match="checksum"):
                trainer.sync(new)
            assert trainer.holds(old)
            trainer.sync(new)
            assert trainer.holds(new)


__all__ = ["TransportConformance", "frame_of"]
