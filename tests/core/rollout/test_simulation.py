"""The simulated engine against hand sums, its own recount, and the bound; equal work under every policy."""

from __future__ import annotations

import dataclasses
import math
import random
from dataclasses import replace

import pytest

from slipstream.core.rollout import (
    CacheAwareRouter,
    CostFit,
    LoadReport,
    ReplicaLimits,
    RouterSettings,
    Segment,
    StepCosts,
)
from slipstream.core.rollout.simulation import shapes
from slipstream.core.rollout.simulation.bound import lower_bound
from slipstream.core.rollout.simulation.cluster import Cluster
from slipstream.core.rollout.simulation.engine import EngineModel
from slipstream.core.rollout.simulation.kv_cache import KvCache
from slipstream.core.rollout.simulation.peers import PEERS
from slipstream.core.rollout.simulation.replay import OURS, POLICIES, factory, percentile, replay
from slipstream.core.rollout.simulation.workload import Trajectory, TurnWork, Workload

BASE = EngineModel()
DATA = shapes.Recordings(None)
SMALL = replace(BASE, limits=ReplicaLimits(30_000, 8))


def single(*turns: TurnWork, shared: int = 0) -> Workload:
    segments = (Segment("system", shared),) if shared else ()
    return Workload("one", [Trajectory(0, 0, segments, turns)])


def seconds(workload: Workload, model: EngineModel = BASE, replicas: int = 1) -> float:
    return Cluster(workload, factory("round_robin", workload), [model] * replicas, check=True).run().seconds


def test_one_request_takes_its_hand_sum():
    costs = BASE.costs
    prefill = costs.step + costs.prefill * 1000 + costs.prefill_quadratic * 1000**2
    decode = sum(costs.step + costs.request + costs.context * (1000 + done) for done in range(1, 50))
    assert seconds(single(TurnWork(1000, 50))) == pytest.approx(prefill + decode, rel=1e-12)


def test_a_long_prompt_is_prefilled_in_chunks():
    costs = BASE.costs
    expected = 3 * costs.step + costs.prefill * 20_000 + costs.prefill_quadratic * 20_000**2
    assert seconds(single(TurnWork(20_000, 1))) == pytest.approx(expected, rel=1e-12)


def test_two_requests_share_iterations_and_the_prefix():
    shared = (Segment("system", 1600),)
    pair = Workload("two", [Trajectory(name, 0, shared, (TurnWork(0, 20),)) for name in range(2)])
    costs = BASE.costs
    # the second prompt is all cached but its last block
    start = 1600 - 16
    prefill = costs.step + costs.prefill * (1600 + 16)
    prefill += costs.prefill_quadratic * (1600**2 + 1600**2 - start**2)
    decode = sum(costs.step + 2 * costs.request + costs.context * 2 * (1600 + done) for done in range(1, 20))
    assert seconds(pair) == pytest.approx(prefill + decode, rel=1e-12)


def test_a_trajectory_alone_reaches_the_bound():
    turns = tuple(TurnWork(300, 200, 1.0) for _ in range(6))
    workload = single(*turns, shared=2000)
    bound = lower_bound(workload, [BASE])
    assert bound <= seconds(workload) <= 1.03 * bound


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("shape", ["multi", "long", "math", "heavy"])
def test_bookkeeping_holds_and_every_policy_does_the_same_work(policy, shape):
    make = {
        "multi": lambda seed: shapes.multi_turn(DATA, 12, seed),
        "long": lambda seed: shapes.multi_turn(DATA, 4, seed, scale=6),
        "math": lambda seed: shapes.single_turn(DATA, 8, seed, cap=6000),
        "heavy": lambda seed: shapes.heavy_prompt(DATA, 8, seed),
    }[shape]
    workload = shapes.step(make, shape, 5)
    model = replace(SMALL, limits=ReplicaLimits(120_000 if shape == "long" else 30_000, 8))
    outcome = Cluster(workload, factory(policy, workload), [model] * 2, check=True).run()
    assert (outcome.turns, outcome.output_tokens) == (workload.turns, workload.output_tokens)
    assert len(outcome.turn_seconds) == workload.turns
    assert outcome.recomputed_tokens >= 0
    assert outcome.seconds >= lower_bound(workload, [model] * 2)


def test_preemption_recomputes_and_loses_nothing():
    workload = Workload("tight", [Trajectory(name, name, (), (TurnWork(100, 900),)) for name in range(8)])
    model = replace(BASE, limits=ReplicaLimits(3000, 8))
    outcome = Cluster(workload, factory("round_robin", workload), [model], check=True).run()
    assert outcome.preemptions > 0
    assert outcome.output_tokens == 8 * 900
    assert outcome.prefill_tokens > 8 * 100


def test_jumps_equal_single_iterations():
    """A request that arrives in the middle joins at the next iteration boundary, as without the jump."""
    late = Trajectory(1, 1, (), (TurnWork(100, 5),), arrival=1.0)
    both = Workload("late", [Trajectory(0, 0, (), (TurnWork(100, 500),)), late])
    cluster = Cluster(both, factory("round_robin", both), [BASE], check=True)
    outcome = cluster.run()
    costs = BASE.costs
    now = costs.step + costs.prefill * 100 + costs.prefill_quadratic * 100**2
    context = 101
    while now < 1.0:
        now += costs.step + costs.request + costs.context * context
        context += 1
    first = (
        costs.step + costs.request + costs.context * context + costs.prefill * 100 + costs.prefill_quadratic * 100**2
    )
    rest = sum(
        costs.step + 2 * costs.request + costs.context * (context + done + 101 + done - 1) for done in range(1, 5)
    )
    assert outcome.turn_seconds[0] == pytest.approx(now + first + rest - 1.0, rel=1e-9)


def test_the_cache_evicts_the_leaf_used_longest_ago_from_its_end():
    cache = KvCache(1000)
    system = Segment("system", 320)
    for name, now in (("a", 1.0), ("b", 2.0)):
        cache.unlock(cache.lock((system, Segment(name, 320)), now), 0, now)
    cache.unlock(cache.lock((Segment("c", 160),), 3.0), 0, 3.0)
    assert cache.cached_tokens((system, Segment("b", 320), Segment("x", 16))) == 640
    assert cache.cached_tokens((system, Segment("a", 320), Segment("x", 16))) == 512, "120 tokens, whole blocks"
    assert cache.recount() == (0, cache.idle)
    assert cache.locked + cache.idle <= 1000


def test_a_policy_that_holds_requests_for_ever_is_an_error():
    workload = single(TurnWork(10, 10))

    class Lost(PEERS["verl"]):  # type: ignore[misc]
        def poll(self, now):
            return []

    with pytest.raises(RuntimeError, match="never ended"):
        Cluster(workload, lambda probe: Lost(probe), [BASE]).run()


def test_more_than_fits_gains_by_admission_and_stays_in_the_cache():
    """The finding that the router is built on, at a size for tests: contexts of 4 x the memory."""
    workload = shapes.step(lambda seed: shapes.multi_turn(DATA, 64, seed), "multi", 7)
    models = [replace(BASE, limits=ReplicaLimits(120_000, 32))] * 2
    found = replay(workload, (OURS, "verl", "sglang", "vllm_kv_aware"), models)
    best = min(found[name].seconds for name in found if name != OURS)
    assert found[OURS].seconds < best / 1.5
    assert found[OURS].hit_rate > 0.85 > found["verl"].hit_rate
    assert percentile(found[OURS].returning_seconds, 0.99) < percentile(found["verl"].returning_seconds, 0.99)


@pytest.mark.parametrize("told", [True, False])
def test_a_replica_that_holds_less_than_its_nominal_kv_is_found_out(told):
    """By what the engine reports, or else by returning turns that find less than they left."""
    workload = shapes.step(lambda seed: shapes.multi_turn(DATA, 64, seed), "multi", 7)
    real = replace(BASE, limits=ReplicaLimits(60_000, 32))
    routers: list[CacheAwareRouter] = []

    class Misinformed(CacheAwareRouter):
        def add_replica(self, replica, limits, now):
            super().add_replica(replica, ReplicaLimits(120_000, limits.max_running), now)

        def report(self, replica, load, now):
            super().report(replica, load if told else replace(load, kv_tokens=None), now)

    def make(probe):
        routers.append(Misinformed(RouterSettings(), history=workload.history))
        return routers[-1]

    outcome = Cluster(workload, make, [real] * 2).run()
    right = Cluster(workload, factory(OURS, workload), [real] * 2).run()
    effective = [state.kv.effective for state in routers[0].replicas.values()]
    assert all(60_000 <= each <= (60_000 if told else 100_000) for each in effective)
    assert outcome.seconds <= 1.15 * right.seconds


def test_costs_are_learned_from_reports():
    workload = shapes.step(lambda seed: shapes.multi_turn(DATA, 32, seed), "multi", 3)
    real = replace(SMALL.costs, step=4e-3, request=1e-3, prefill=0.2e-3)
    routers: list[CacheAwareRouter] = []

    def make(probe):
        routers.append(CacheAwareRouter(history=workload.history))
        return routers[-1]

    Cluster(workload, make, [replace(SMALL, costs=real)] * 2).run()
    learned = routers[0].costs.costs
    for decoding, context, prefill in ((8, 8000, 0), (8, 20_000, 500), (4, 4000, 0)):
        expected = real.step + real.request * decoding + real.context * context + real.prefill * prefill
        got = learned.step + learned.request * decoding + learned.context * context + learned.prefill * prefill
        assert got == pytest.approx(expected, rel=0.1)


def test_empty_reports_teach_nothing():
    router = CacheAwareRouter()
    router.add_replica(0, ReplicaLimits(1000, 1), 0.0)
    before = router.costs.costs
    router.report(0, LoadReport(), 1.0)
    assert router.costs.costs == before
    assert router.costs.reports == 0


def test_the_cost_fit_stays_sane_over_any_reports():
    """Long runs of equal reports, idle gaps and single steps: constants stay finite and predict what is seen."""
    fit = CostFit()
    chance = random.Random(2)
    real = StepCosts(step=5e-3, request=0.2e-3, context=0.02e-6)
    for index in range(5000):
        decoding = 1 if index < 3000 else chance.randrange(1, 65)
        context = 1000 * decoding
        steps = chance.choice((1, 50, 100_000))
        seconds = steps * (real.step + real.request * decoding + real.context * context) * chance.uniform(0.9, 1.1)
        fit.add(LoadReport(steps, seconds, steps * decoding, steps * context))
    got = fit.costs
    assert all(math.isfinite(each) and each >= 0 for each in dataclasses.astuple(got))
    for decoding in (4, 60):
        expected = real.step + real.request * decoding + real.context * 1000 * decoding
        assert got.step + (got.request + got.context * 1000) * decoding == pytest.approx(expected, rel=0.1)
