"""Stepping down when predictions fail."""

from __future__ import annotations

from slipstream.core.graph.forecast import KnownLengths
from slipstream.core.graph.guard import Guarded
from slipstream.core.graph.simulator import simulate


def test_three_surprises_of_five_leave_the_greedy_rule():
    guarded = Guarded()
    ends = [(10.0, 10.0), (10.0, 14.0), (10.0, 9.0), (10.0, 6.0)]
    assert [guarded.stage_ended(*end) for end in ends] == [False, True, False, True]
    assert guarded.level == 0
    guarded.stage_ended(10.0, 20.0)
    assert guarded.level == 1


def test_surprises_that_are_long_past_do_not_count():
    guarded = Guarded()
    for _ in range(2):
        guarded.stage_ended(10.0, 20.0)
    for _ in range(4):
        guarded.stage_ended(10.0, 10.0)
    guarded.stage_ended(10.0, 20.0)
    assert guarded.level == 0


def test_slower_than_a_static_plan_leaves_the_own_order():
    guarded = Guarded()
    guarded.throughput(0.98, 1.0)
    assert guarded.level == 0
    guarded.throughput(0.96, 1.0)
    assert guarded.level == 2


def test_every_level_finishes_the_work(make_workload):
    workload = make_workload(2)
    seconds = [simulate(workload, Guarded(level=level), KnownLengths()).seconds for level in range(3)]
    assert seconds[0] <= seconds[2]
    assert seconds[1] <= seconds[2]
