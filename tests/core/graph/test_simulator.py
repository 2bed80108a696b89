"""The simulated cluster: what no scheduler can do, and what every scheduler must."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.core.graph.compiled.model import GANG, Flag
from slipstream.core.graph.forecast import KnownLengths, Remembered
from slipstream.core.graph.gantt import bars
from slipstream.core.graph.guard import Guarded
from slipstream.core.graph.launch import choose
from slipstream.core.graph.schedulers import GREEDY_RULE, ROUND_ROBIN_RULE, THRESHOLD_RULE, Beam, LookAhead
from slipstream.core.graph.simulator import simulate
from slipstream.core.graph.static_plans import carry_out, exclusive_seconds, rollout_seconds, static_plans
from slipstream.core.graph.world import ALL_ACTIONS

SCHEDULERS = {
    "greedy": GREEDY_RULE,
    "round robin": ROUND_ROBIN_RULE,
    "threshold": THRESHOLD_RULE,
    "beam": Beam(2, 2),
    "look-ahead": LookAhead(),
    "deeper": LookAhead(0.0, 3, 3),
    "own order": Guarded(level=2),
}


def check_log(workload, run):
    """Memory, occupancy and order hold at every moment, and every stage gets its work done."""
    log = run.log
    pipeline, worker, kind, step, start, end, rate = log.T
    floors = np.array([(p.memory.decode, p.memory.train) for p in workload.pipelines])
    need = floors[pipeline.astype(int), (kind >= GANG).astype(int)]
    for moment in np.unique(start):
        now = (start <= moment + 1e-9) & (end > moment + 1e-9)
        for w in range(workload.workers):
            here = now & (worker == w)
            assert here.sum() <= 2
            assert need[here].sum() <= 1.0 + 1e-9
            assert (kind[here] < GANG).sum() <= 1
    for p, each in enumerate(workload.pipelines):
        for s in range(len(each.lengths)):
            own = (pipeline == p) & (step == s)
            rollout_end = end[own & (kind < GANG)].max()
            gang = own & (kind >= GANG)
            assert start[gang].min() >= rollout_end - 1e-6
            for stage, seconds in ((1, each.stages.train), (2, each.stages.sync)):
                rows = gang & (kind == GANG + stage) & (worker == 0)
                assert (rate[rows] * (end[rows] - start[rows])).sum() == pytest.approx(seconds, rel=1e-6)
                assert set(worker[gang & (kind == GANG + stage)]) == set(range(workload.workers))
            if s > each.staleness:
                synced = end[(pipeline == p) & (step == s - 1 - each.staleness) & (kind >= GANG)].max()
                assert start[own & (kind < GANG)].min() >= synced - 1e-6


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("staleness", [0, 1])
def test_every_scheduler_ends_and_breaks_no_rule(make_workload, name, staleness):
    workload = make_workload(staleness=staleness)
    run = simulate(workload, SCHEDULERS[name], KnownLengths(), record=True)
    check_log(workload, run)
    assert run.ends.min() > 0
    assert run.seconds >= max(run.ends) - 1e-9


@pytest.mark.parametrize("name", ["greedy", "look-ahead", "round robin"])
def test_stages_that_do_not_fit_together_never_share_a_worker(make_workload, heavy_memory, name):
    workload = make_workload(memory=heavy_memory)
    run = simulate(workload, SCHEDULERS[name], KnownLengths(), record=True)
    check_log(workload, run)


@pytest.mark.parametrize("name", ["greedy", "look-ahead"])
def test_without_co_run_nothing_shares_a_worker(make_workload, name):
    workload = make_workload()
    run = simulate(workload, SCHEDULERS[name], KnownLengths(), allowed=ALL_ACTIONS - {Flag.CORUN}, record=True)
    check_log(workload, run)
    assert np.all(run.log[:, 6] == 1.0)


def test_alone_without_actions_a_pipeline_takes_its_serial_time(make_workload):
    """The play-out's arithmetic against the closed form: sum over steps of slowest worker plus stages."""
    workload = make_workload(1, workers=3, requests=31, steps=3)
    (each,) = workload.pipelines
    expected = sum(rollout_seconds(each, np.array(step), 3) + 12.0 for step in each.lengths)
    run = simulate(workload, GREEDY_RULE, KnownLengths(), allowed=frozenset())
    assert run.seconds == pytest.approx(expected, rel=1e-9)
    assert run.serial == pytest.approx(expected, rel=1e-9)


def test_the_own_order_is_the_serial_time(make_workload):
    workload = make_workload(2)
    apart = simulate(workload, Guarded(level=2), KnownLengths(), allowed=ALL_ACTIONS - {Flag.OVERLAP})
    assert apart.seconds == pytest.approx(apart.serial, rel=1e-9)


def test_log_prob_of_finished_groups_is_what_a_single_pipeline_gains(make_workload):
    workload = make_workload(1, steps=3)
    run = simulate(workload, LookAhead(), KnownLengths())
    assert 1.0 < run.speedup < 1.0 + 3 * 0.9 * 3.0 / run.serial + 0.1
    without = simulate(workload, LookAhead(), KnownLengths(), allowed=ALL_ACTIONS - {Flag.OVERLAP})
    assert without.speedup == pytest.approx(1.0, abs=1e-6)


def test_merged_requests_keep_every_token(make_workload):
    """Whatever is merged, the decode time of the longest request cannot shrink."""
    workload = make_workload(3, steps=2, seed=3)
    run = simulate(workload, LookAhead(0.0), KnownLengths())
    assert any(action[0] == 5 for _, action in run.actions)
    for each, end in zip(workload.pipelines, run.ends, strict=True):
        floor = sum(max(step) * each.decode.iteration + each.stages.train + each.stages.sync for step in each.lengths)
        assert end >= floor


@pytest.mark.parametrize("seed", range(3))
def test_the_launch_choice_is_never_worse_than_a_static_plan(make_workload, seed):
    workload = make_workload(2, seed=seed)
    lengths = [each.step_lengths() for each in workload.pipelines]
    chosen = choose(workload, KnownLengths())
    best = min(plan.seconds for plan in static_plans(workload, lengths).values())
    assert chosen.seconds <= best
    if chosen.scheduler is not None:
        run = simulate(workload, chosen.scheduler, KnownLengths(), preferred=chosen.preferred)
        assert run.seconds == pytest.approx(chosen.seconds, rel=1e-9)


@pytest.mark.parametrize("forecaster", [KnownLengths(0.3, 1), Remembered([np.full(32, 400.0), np.full(32, 400.0)])])
@pytest.mark.parametrize("group", [1, 2])
def test_wrong_predictions_and_grouped_workers_delay_but_never_break(make_workload, forecaster, group):
    workload = make_workload(2)
    run = simulate(workload, LookAhead(), forecaster, group=group, record=True)
    check_log(workload, run)


def test_a_run_is_the_same_twice(make_workload):
    workload = make_workload(2)
    one, two = (simulate(workload, LookAhead(), KnownLengths(0.3, 5)) for _ in range(2))
    assert one.actions == two.actions
    assert one.seconds == two.seconds


def test_static_plans_by_hand(make_workload):
    workload = make_workload(2, workers=4, requests=8, steps=1)
    lengths = [each.step_lengths() for each in workload.pipelines]
    plans = static_plans(workload, lengths)
    gang = (3.0 + 8.0) * 4 / 2 + 1.0
    halves = [
        rollout_seconds(each, steps[0], 2) + gang for each, steps in zip(workload.pipelines, lengths, strict=True)
    ]
    assert plans["even split"].seconds == pytest.approx(max(halves))
    assert plans["serial"].seconds == pytest.approx(sum(exclusive_seconds(workload, lengths)))
    first, second = (
        [rollout_seconds(each, steps[0], size) for size in (1, 2, 3)]
        for each, steps in zip(workload.pipelines, lengths, strict=True)
    )
    pools = []
    for size in (1, 2, 3):
        train = 11.0 * 4 / (4 - size) + 1.0
        begin = first[size - 1]
        pools.append(max(begin + train, begin + second[size - 1]) + train)
    assert plans["pool split"].seconds == pytest.approx(min(pools))
    for plan in plans.values():
        assert carry_out(workload, lengths, plan) == plan


def test_bars_of_a_run_cover_its_log(make_workload):
    workload = make_workload(2)
    run = simulate(workload, LookAhead(), KnownLengths(), record=True)
    found = bars(workload, run.log)
    assert len(found) < len(run.log)
    assert sum(bar.end - bar.start for bar in found) == pytest.approx((run.log[:, 5] - run.log[:, 4]).sum())
    assert max(bar.end for bar in found) == pytest.approx(run.seconds)


def test_a_latency_cap_shortens_the_capped_pipeline(make_workload):
    import msgspec

    workload = make_workload(3, steps=3, seed=1)
    free = simulate(workload, LookAhead(0.0), KnownLengths())
    slowest = int(np.argmax(free.latency))
    pipelines = list(workload.pipelines)
    pipelines[slowest] = msgspec.structs.replace(pipelines[slowest], latency_cap=1.1)
    capped = simulate(msgspec.structs.replace(workload, pipelines=tuple(pipelines)), LookAhead(0.0), KnownLengths())
    assert capped.latency[slowest] < free.latency[slowest]
