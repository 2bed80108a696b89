"""The arbiter as a real Ray actor, and a trainer that outlives it."""

from __future__ import annotations

import time

import pytest

from slipstream.core.graph import Lane, LeaseError, Request
from slipstream.core.graph.arbiter_actor import ArbiterClient, start_arbiter

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
