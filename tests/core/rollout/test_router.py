"""The rules of the router, one small scene each; numbers in brackets are threads in which users met the fault."""

from __future__ import annotations

from collections import Counter

import pytest

from slipstream.core.hooks import plugins
from slipstream.core.rollout import (
    Abort,
    CacheAwareRouter,
    Dispatch,
    FinishedLengths,
    HeadStart,
    LoadReport,
    ReplicaLimits,
    RouterSettings,
    Segment,
    StepCosts,
    Turn,
    TurnResult,
)

HISTORY = [FinishedLengths(100, 0, 2)] * 16


def turn(trajectory: int, index: int = 0, own: int = 100, group: int | None = None, shared: int = 0) -> Turn:
    prompt = ((Segment("system", shared),) if shared else ()) + (Segment(("own", trajectory), own),)
    return Turn((trajectory, index), trajectory, trajectory if group is None else group, prompt, index == 0)


def router(replicas: int = 2, kv: int = 10_000, running: int = 8, **settings: float) -> CacheAwareRouter:
    made = CacheAwareRouter(RouterSettings(**settings), history=HISTORY)  # type: ignore[arg-type]
    for name in range(replicas):
        made.add_replica(name, ReplicaLimits(kv, running), 0.0)
    return made


def dispatches(made: CacheAwareRouter, now: float = 0.0) -> dict[object, Dispatch]:
    return {each.request_id: each for each in made.poll(now) if isinstance(each, Dispatch)}


def test_idle_replicas_fan_out():
    """[verl #7613] 200 requests, one after the other on 4 idle replicas: ties must not all go to the first."""
    made = router(4)
    found: Counter[object] = Counter()
    for name in range(200):
        made.submit(turn(name), 0.0)
        sent = dispatches(made)[name, 0]
        made.finished(sent.request_id, sent.attempt, TurnResult(1, ended=True), 0.0)
        found[sent.replica] += 1
    assert min(found.values()) >= 25


def test_ties_are_reproducible():
    def choices(seed: int) -> list[object]:
        made = router(4, seed=seed)
        for name in range(40):
            made.submit(turn(name), 0.0)
        return [sent.replica for sent in dispatches(made).values()]

    assert choices(3) == choices(3)
    assert choices(3) != choices(4)


def test_what_does_not_fit_waits_and_enters_when_something_ends():
    made = router(1, kv=1000)
    for name in range(4):
        made.submit(turn(name, own=250), 0.0)
    first = dispatches(made)
    assert len(first) == 2  # 250 own and a share of 100 to come, each; 900 of 1000 may be taken
    assert made.waiting == 2
    sent = next(iter(first.values()))
    made.finished(sent.request_id, sent.attempt, TurnResult(10, ended=True), 1.0)
    assert len(dispatches(made, 1.0)) == 1


def test_an_empty_replica_takes_anything():
    made = router(1, kv=1000)
    made.submit(turn(0, own=5000), 0.0)
    assert dispatches(made)


def test_a_trajectory_in_a_tool_keeps_its_place():
    made = router(1, kv=1000)
    made.submit(turn(0, own=400), 0.0)
    sent = dispatches(made)[0, 0]
    made.finished(sent.request_id, sent.attempt, TurnResult(100), 1.0)
    made.submit(turn(1, own=400), 1.0)
    assert not dispatches(made, 1.0)
    made.submit(turn(0, 1, own=520), 2.0)
    assert (0, 1) in dispatches(made, 2.0)


def test_returning_turns_go_home_however_busy_it_is():
    """[verl #6533] Affinity is not broken for a difference in counts."""
    made = router(2)
    for name in range(8):
        made.submit(turn(name), 0.0)
    sent = dispatches(made)
    for each in sent.values():
        made.finished(each.request_id, each.attempt, TurnResult(50), 1.0)
    for name in range(8):
        made.submit(turn(name, 1, own=160), 2.0)
    back = dispatches(made, 2.0)
    assert all(back[name, 1].replica == sent[name, 0].replica for name in range(8))


def test_a_shared_prompt_counts_once():
    made = router(1, kv=1500)
    for name in range(4):
        made.submit(turn(name, own=100, shared=600), 0.0)
    assert len(dispatches(made)) == 4


def test_the_youngest_is_parked_when_predictions_were_wrong_and_comes_back_first():
    made = router(1, kv=1000)
    for name in range(2):
        made.submit(turn(name, own=200), 0.0)
    sent = dispatches(made)
    for each in sent.values():
        made.finished(each.request_id, each.attempt, TurnResult(300), 1.0)
    oldest, youngest = sorted(made.replicas[0].live, key=lambda name: made.replicas[0].live[name].bound)
    made.submit(turn(youngest, 1, own=510), 2.0)
    assert not dispatches(made, 2.0)
    made.submit(turn(oldest, 1, own=510), 2.0)
    made.submit(turn(7, own=10), 2.0)
    back = dispatches(made, 2.0)
    assert set(back) == {(oldest, 1)}, "the oldest goes on; nothing new enters while one is parked"
    made.finished((oldest, 1), back[oldest, 1].attempt, TurnResult(1, ended=True), 3.0)
    assert (youngest, 1) in dispatches(made, 3.0)


def test_the_engines_own_capacity_replaces_the_nominal_one():
    made = router(1, kv=100_000)
    made.report(0, LoadReport(kv_tokens=1000), 0.0)
    for name in range(4):
        made.submit(turn(name, own=250), 0.0)
    assert len(dispatches(made)) == 2


def test_less_in_the_cache_than_left_there_shrinks_the_capacity():
    made = router(1, kv=10_000)
    made.submit(turn(0, own=1000), 0.0)
    for index in range(30):
        sent = dispatches(made)[0, index]
        made.finished(sent.request_id, sent.attempt, TurnResult(10, cached_tokens=16 if index else 0), 1.0)
        made.submit(turn(0, index + 1, own=1000 + 20 * (index + 1)), 1.0)
    assert made.replicas[0].kv.effective == 5000, "not below half of what the engine says"


def test_groups_spread():
    made = router(4)
    for name in range(8):
        made.submit(turn(name, group=0), 0.0)
    assert set(Counter(sent.replica for sent in dispatches(made).values()).values()) == {2}


def test_longest_group_first_and_one_sibling_each_under_overload():
    made = CacheAwareRouter(history=[FinishedLengths(100, 50, 3)] * 16)
    made.add_replica(0, ReplicaLimits(10**6, 1), 0.0)
    for name in range(12):
        made.submit(turn(name, group=name // 4), 0.0)
    entered = list(dispatches(made))
    assert len({request[0] // 4 for request in entered}) == 2, "two fit, of different groups"


def test_known_lengths_order_groups_and_switch_the_spreading_off():
    made = CacheAwareRouter(history=[FinishedLengths(100, 50, 3)] * 16, known={2: 900.0})
    made.add_replica(0, ReplicaLimits(10**6, 1), 0.0)
    for name in range(12):
        made.submit(turn(name, group=name // 4), 0.0)
    assert {request[0] // 4 for request in dispatches(made)} == {2}


def test_waiting_requests_of_a_lost_replica_go_elsewhere_and_its_late_answers_are_refused():
    made = router(2)
    for name in range(6):
        made.submit(turn(name), 0.0)
    sent = dispatches(made)
    made.remove_replica(0, 1.0)
    again = dispatches(made, 1.0)
    lost = {request for request, each in sent.items() if each.replica == 0}
    assert set(again) == lost
    assert all(each.replica == 1 and each.attempt > len(sent) for each in again.values())
    for request in lost:
        assert not made.finished(request, sent[request].attempt, TurnResult(5), 2.0)
        assert made.finished(request, again[request].attempt, TurnResult(5, ended=True), 2.0)


def test_a_stalled_replica_is_left_and_used_again_when_heard_of():
    made = router(2, stall_seconds=30)
    made.submit(turn(0), 0.0)
    sent = dispatches(made)[0, 0]
    other = 1 - int(str(sent.replica))
    made.report(other, LoadReport(), 29.0)
    assert dispatches(made, 31.0)[0, 0].replica == other
    made.report(sent.replica, LoadReport(), 32.0)
    assert not made.replicas[sent.replica].stalled


def test_data_parallel_ranks_are_replicas_of_their_own():
    """[Dynamo #9920] Affinity is to (worker, rank); to the worker it would drift across its ranks."""
    made = CacheAwareRouter(history=HISTORY)
    for rank in range(4):
        made.add_replica(("worker", rank), ReplicaLimits(10_000, 8), 0.0)
    made.submit(turn(0), 0.0)
    home = dispatches(made)[0, 0]
    made.finished(home.request_id, home.attempt, TurnResult(10), 0.0)
    for name in range(1, 9):
        made.submit(turn(name), 1.0)
    dispatches(made, 1.0)
    made.submit(turn(0, 1, own=120), 2.0)
    assert dispatches(made, 2.0)[0, 1].replica == home.replica


def test_everything_that_is_aborted_is_forgotten_and_said():
    """[SkyRL #537, vLLM #32103] N in flight and M waiting: the engine is told of N, and none of N + M is left."""
    made = router(1, kv=1000)
    for name in range(5):
        made.submit(turn(name, own=250), 0.0)
    in_flight = dispatches(made)
    assert len(in_flight) == 2
    for name in range(5):
        made.cancel((name, 0), 1.0)
    aborts = [each for each in made.poll(1.0) if isinstance(each, Abort)]
    assert {each.request_id for each in aborts} == set(in_flight)
    assert made.waiting == 0
    for name in range(5):
        made.end_trajectory(name, 1.0)
    assert not made.replicas[0].live


def test_a_migration_aborts_once_and_goes_on_at_the_target():
    history = [FinishedLengths(n, 0, 1) for n in range(1000, 9000, 500)]
    made = CacheAwareRouter(history=history, costs=StepCosts(request=5e-3))
    for name in range(2):
        made.add_replica(name, ReplicaLimits(100_000, 8), 0.0)
    for name in range(8):
        made.submit(turn(name), 0.0)
    sent = dispatches(made)
    emptied = [each for each in sent.values() if each.replica == 0]
    for each in emptied:
        made.finished(each.request_id, each.attempt, TurnResult(500, ended=True), 5.0)
    for request in sent:
        made.progress(request, 100, 6.0)
    aborts = [each for each in made.poll(6.0) if isinstance(each, Abort)]
    assert len(aborts) == 1
    assert not [each for each in made.poll(9.0) if isinstance(each, Abort) and each.request_id == aborts[0].request_id]
    moved = aborts[0]
    assert made.finished(moved.request_id, moved.attempt, TurnResult(120, aborted=True), 9.1)
    assert dispatches(made, 9.1)[moved.request_id].replica == 0
    assert made.counts.migrations == 1


def test_a_head_start_holds_siblings_until_the_first_is_far_enough():
    made = CacheAwareRouter(history=[FinishedLengths(400, 0, 1)] * 16, head_start=HeadStart(lengths=(64,), tail=0.5))
    made.add_replica(0, ReplicaLimits(10**6, 2), 0.0)
    for name in range(24):
        made.submit(turn(name, group=name // 4), 0.0)
    started = dispatches(made)
    assert len({request[0] // 4 for request in started}) == len(started), "one sibling a group"
    pilot = next(iter(started))
    made.progress(pilot, 64, 1.0)
    other = next(request for request in started if request != pilot)
    made.finished(other, started[other].attempt, TurnResult(10, ended=True), 1.0)
    entered = dispatches(made, 1.0)
    assert len(entered) == 1


def test_requests_are_submitted_once():
    made = router()
    made.submit(turn(0), 0.0)
    with pytest.raises(ValueError, match="unique"):
        made.submit(turn(0), 0.0)
    dispatches(made)
    with pytest.raises(ValueError, match="under way"):
        made.submit(turn(0, 1), 0.0)


def test_new_weights_make_leaving_home_free():
    """A cache that was reset is no reason to stay: affinity has no value after a weight update."""
    made = router(2)
    made.submit(turn(0, own=5000), 0.0)
    sent = dispatches(made)[0, 0]
    made.finished(sent.request_id, sent.attempt, TurnResult(10), 0.0)
    live = made.replicas[sent.replica].live[0]
    assert live.resident
    made.weights_changed(1, 1.0)
    assert not live.resident


def test_memory_is_bounded_by_what_is_live():
    made = router(2, running=64)
    for name in range(3000):
        made.submit(turn(name), 0.0)
        sent = dispatches(made)[name, 0]
        made.finished(sent.request_id, sent.attempt, TurnResult(10, ended=True), 0.0)
    assert not made._live
    assert not made._unanswered
    assert not made._requests
    assert not made._order._footprints


def test_the_router_is_an_ordinary_plugin():
    policy = plugins().routing_policy("cache_aware").factory()
    policy.add_replica(0, ReplicaLimits(1000, 4), 0.0)
    policy.submit(turn(0), 0.0)
    assert [each.replica for each in policy.poll(0.0)] == [0]


@pytest.mark.parametrize("event", ["weights", "loss", "none"])
def test_a_turn_that_lost_its_context_says_nothing_about_the_capacity(event):
    """Every request that verl's asynchronous trainers abort for a weight sync comes back to an empty cache."""
    router = CacheAwareRouter(RouterSettings(move_seconds=0), history=[FinishedLengths(50, 0, 2)] * 8)
    for name in "ab":
        router.add_replica(name, ReplicaLimits(10_000, 8), 0.0)

    def turn(index: int, own: int) -> Turn:
        return Turn(index, "t", "g", (Segment(("own", "t"), own),), index == 0)

    router.submit(turn(0, 1000), 0.0)
    (dispatch,) = router.poll(0.0)
    assert router.finished(0, dispatch.attempt, TurnResult(50), 1.0)
    router.submit(turn(1, 1100), 2.0)
    (dispatch,) = router.poll(2.0)
    if event == "weights":
        router.weights_changed(1, 2.0)
    elif event == "loss":
        router.remove_replica(dispatch.replica, 2.0)
        abort, dispatch = sorted(router.poll(2.0), key=lambda action: isinstance(action, Dispatch))
        assert abort.taken
        router.salvaged("t", 1, 7)
    router.progress(1, 1, 3.0)
    assert router.finished(1, dispatch.attempt, TurnResult(50, cached_tokens=0), 4.0)
    kept = router.replicas[dispatch.replica].kv.effective == 10_000
    assert kept == (event != "none")
    router.end_trajectory("t", 5.0)
    assert router.lengths.mean == 50  # of the last step; this one's is counted whole all the same
    assert router.lengths._ended[-1].output_tokens == 100 + (7 if event == "loss" else 0)
