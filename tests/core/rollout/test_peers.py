"""Peers decision by decision against the real thing, where it is a class; `benchmarks/rollout/check_routers.py` does
the same with the router binaries."""

from __future__ import annotations

import random

import pytest

from slipstream.core.rollout import ReplicaLimits, Segment, Turn, TurnResult
from slipstream.core.rollout.simulation.peers import PEERS


def turn(trajectory: int, index: int, own: int = 10) -> Turn:
    return Turn((trajectory, index), trajectory, 0, (Segment(("own", trajectory), own),), index == 0)


@pytest.mark.parametrize("seed", range(5))
def test_verl_is_verls_own_load_balancer(seed):
    """verl's class decides; ours must have that replica among its candidates, and no other when it is no tie."""
    router = pytest.importorskip("verl.workers.rollout.router")
    real = router.GlobalRequestLoadBalancer({f"s{index}": None for index in range(4)})
    ours = PEERS["verl"](lambda replica, prompt: 0)
    for index in range(4):
        ours.add_replica(f"s{index}", ReplicaLimits(1000, 4), 0.0)
    chance = random.Random(seed)
    turns: dict[int, int] = {}
    running: list[tuple[int, int, str, int]] = []
    forced = 0
    for step in range(2000):
        if running and chance.random() < 0.5:
            trajectory, index, server, attempt = running.pop(chance.randrange(len(running)))
            real.release_server(server, str(trajectory))
            assert ours.finished((trajectory, index), attempt, TurnResult(1), 0.0)
            continue
        busy = {trajectory for trajectory, *_ in running}
        trajectory = chance.choice([name for name in range(step // 4 + 8) if name not in busy])
        index = turns[trajectory] = turns.get(trajectory, -1) + 1
        request = turn(trajectory, index)
        candidates = ours.candidates(request)
        server, _ = real.acquire_server(str(trajectory))
        assert server in candidates, (step, server, candidates)
        forced += len(candidates) == 1
        running.append((trajectory, index, server, ours.bind(request, server).attempt))
    assert forced > 500, "most decisions must leave no choice"


def test_idle_replicas_fan_out_for_verl_too():
    ours = PEERS["verl"](lambda replica, prompt: 0)
    for index in range(4):
        ours.add_replica(index, ReplicaLimits(1000, 4), 0.0)
    assert len(ours.candidates(turn(0, 0))) == 4


def test_kv_aware_weighs_uncached_and_active_prefill_by_active_requests():
    cached = {0: 0, 1: 900}
    ours = PEERS["vllm_kv_aware"](lambda replica, prompt: cached[replica])
    for index in range(2):
        ours.add_replica(index, ReplicaLimits(1000, 4), 0.0)
    assert ours.candidates(turn(0, 0, 1000)) == [1]
    for name in range(1, 11):
        ours.bind(turn(name, 0, 1000), 1)
        ours.progress((name, 0), 1, 0.0)
    assert ours.candidates(turn(11, 0, 1000)) == [0], "(100 + 0) x 11 > (1000 + 0) x 1"
    ours.bind(turn(12, 0, 1000), 0)
    assert ours.candidates(turn(13, 0, 1000)) == [1], "(1000 + 1000) x 2 > 100 x 11: the prefill there is not over"


def test_dynamo_counts_prefill_and_decode_blocks():
    ours = PEERS["dynamo"](lambda replica, prompt: 320 if replica == 0 else 0)
    for index in range(2):
        ours.add_replica(index, ReplicaLimits(10_000, 4), 0.0)
    assert ours.candidates(turn(0, 0, 640)) == [0], "20 + 40 blocks against 40 + 40"
    ours.bind(turn(1, 0, 640), 0)
    ours.progress((1, 0), 1, 0.0)
    assert ours.candidates(turn(2, 0, 640)) == [1], "20 + 80 against 40 + 40"


def test_sglang_follows_the_last_replica_at_the_end_of_the_match_until_the_lead_is_64():
    ours = PEERS["sglang"](lambda replica, prompt: 0)
    for index in range(2):
        ours.add_replica(index, ReplicaLimits(10_000, 4), 0.0)
    system = Segment("system", 600)

    def request(name: int) -> Turn:
        return Turn((name, 0), name, name, (system, Segment(("own", name), 100)), True)

    ours.bind(request(0), 1)
    for name in range(1, 65):
        assert ours.candidates(request(name)) == [1], "600 of 700 match: everything goes where the prompt went"
        ours.bind(request(name), 1)
    assert ours.candidates(request(65)) == [0], "65 against 0 in flight"


def test_requests_of_a_removed_replica_are_bound_again():
    for peer in PEERS.values():
        ours = peer(lambda replica, prompt: 0)
        for index in range(2):
            ours.add_replica(index, ReplicaLimits(10_000, 4), 0.0)
        ours.submit(turn(0, 0), 0.0)
        first = ours.poll(0.0)[0]
        ours.remove_replica(first.replica, 0.0)
        again = ours.poll(0.0)[0]
        assert again.replica != first.replica
        assert not ours.finished(first.request_id, first.attempt, TurnResult(1), 0.0)
        assert ours.finished(again.request_id, again.attempt, TurnResult(1, ended=True), 0.0)
