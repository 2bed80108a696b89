"""The arbiter as a real Ray actor, and a trainer that outlives it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from slipstream.core.graph import Lane, LeaseError, Request
from slipstream.core.graph.arbiter_actor import ArbiterClient, start_arbiter
from slipstream.core.graph.holder import LeaseHolder, worker_of

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.engine
ALL = frozenset(range(2))


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_trainers_share_one_arbiter_and_go_on_without_it(cluster):
    first = ArbiterClient(start_arbiter(workers=2), retry_seconds=30.0)
    assert first.wait_ready(120.0)
    second = ArbiterClient(start_arbiter(workers=2))  # the same one
    rollout = Request("a", Lane.ROLLOUT, "rollout", ALL, 1, 0.4)
    lease = first.ask(rollout)
    assert lease.workers == ALL
    beside = second.ask(Request("b", Lane.GANG, "train", ALL, 2, 0.5))
    assert beside.share < 1.0
    assert first.renew(lease) is None
    with pytest.raises(LeaseError, match="expected workers from 0 to 1"):
        second.ask(Request("b", Lane.ROLLOUT, "rollout", frozenset({5}), 1, 0.4))
    first.release(lease)
    with pytest.raises(LeaseError, match="ended or expired"):
        first.renew(lease)
    second.release(beside)

    ray.kill(first.actor)
    began = time.monotonic()
    alone = first.ask(rollout)
    assert alone.id == 0
    assert alone.workers == ALL
    assert first.renew(alone) is None
    first.release(alone)
    assert first.ask(rollout).id == 0
    assert time.monotonic() - began < 15.0


def test_whoever_waits_is_served_at_once(cluster):
    """A trainer asks at every stage boundary, so waiting must cost no more than what it waits for."""
    # the one before may be dying still
    first = ArbiterClient(start_arbiter(), reconnect=start_arbiter, timeout_seconds=60.0)
    assert first.wait_ready(120.0)
    second = ArbiterClient(start_arbiter(), reconnect=start_arbiter)
    lease = first.ask(Request("a", Lane.GANG, "train", ALL, 2, 1.0))
    assert second.ask_now(Request("c", Lane.GANG, "train", ALL, 2, 1.0)) is None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.ask, Request("b", Lane.GANG, "train", ALL, 2, 1.0))
        time.sleep(0.5)
        assert not waiting.done()
        released = time.monotonic()
        first.release(lease)
        beside = waiting.result(timeout=20)
    assert time.monotonic() - released < 0.5
    assert ray.get(first.actor.pipelines.remote()) == ("b",), "who asked for something at once does not wait"
    second.withdraw(beside.request.pipeline)
    ray.kill(first.actor)


def test_a_lease_of_the_dead_passes_on_and_a_dead_arbiter_is_replaced(cluster):
    """Ends with the holder of a lease, whose process stands still, and with the arbiter, killed while two hold it."""

    def connect():
        return start_arbiter(lease_seconds=2.0, quiet_seconds=1.0)

    dead = ArbiterClient(connect(), reconnect=connect, timeout_seconds=60.0)
    assert dead.ask(Request("dead", Lane.GANG, "train", ALL, 2, 1.0)).id > 0  # and never renews
    client = ArbiterClient(connect(), reconnect=connect, timeout_seconds=60.0)
    holder = LeaseHolder(client, "alive", ALL, renew_seconds=0.2)
    assert not holder.acquire(Lane.GANG, "train", 1.0).alone
    time.sleep(2.5)  # longer than a lease: it is renewed
    other_client = ArbiterClient(connect(), reconnect=connect, timeout_seconds=60.0)
    other = LeaseHolder(other_client, "other", ALL, renew_seconds=0.2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.acquire, Lane.GANG, "train", 1.0)
        time.sleep(0.5)
        assert not waiting.done()
        ray.kill(client.actor)
        deadline = time.monotonic() + 90
        while holder.counts["adopted"] == 0 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert holder.counts["adopted"] == 1, "the new arbiter was told"
        assert not waiting.done(), "nobody gets what the first one holds, not even from the new arbiter"
        holder.release(Lane.GANG)
        assert not waiting.result(timeout=90).alone
    other.close()
    holder.close()
    ray.kill(client.actor)


def test_a_device_has_one_number_everywhere():
    numbers = {worker_of(f"node{node}", str(device)) for node in range(64) for device in range(8)}
    assert len(numbers) == 512
    assert worker_of("node1", "3") == worker_of("node1", "3") < 1 << 52
