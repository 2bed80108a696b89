"""Time and memory of the router's decisions at 64 replicas and 10,000 queued trajectories."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from slipstream.core.rollout import (
    CacheAwareRouter,
    Dispatch,
    FinishedLengths,
    ReplicaLimits,
    Segment,
    Turn,
    TurnResult,
)

Result = TypeVar("Result")

REPLICAS, QUEUED, GROUP = 64, 10_000, 8
FIRST_TOKENS, OUTPUT_TOKENS = 500, 400


def _turn(trajectory: int, index: int, own: int) -> Turn:
    prompt = (
        Segment("system", 1200),
        Segment(("group", trajectory // GROUP), 300),
        Segment(("own", trajectory), own),
    )
    return Turn((trajectory, index), trajectory, trajectory // GROUP, prompt, index == 0)


def loaded(queued: int = QUEUED) -> tuple[CacheAwareRouter, dict[object, Dispatch]]:
    """Return a router whose replicas are full, `queued` trajectories behind, and what is in flight."""
    history = [FinishedLengths(300 + 7 * (index % 100), 800, 4) for index in range(2048)]
    router = CacheAwareRouter(history=history)
    for replica in range(REPLICAS):
        router.add_replica(replica, ReplicaLimits(400_000, 64), 0.0)
    total = 64 * REPLICAS * 2 + queued
    for trajectory in range(total):
        router.submit(_turn(trajectory, 0, FIRST_TOKENS), 0.0)
    in_flight = {action.request_id: action for action in router.poll(0.0) if isinstance(action, Dispatch)}
    return router, in_flight


def measure(rounds: int) -> list[dict[str, object]]:
    """Time a returning turn, and an end with the admission that follows, in CPU time of this thread."""
    tracemalloc.start()
    router, in_flight = loaded()
    bytes_used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    trajectories = 64 * REPLICAS * 2 + QUEUED
    running = list(in_flight.values())
    now = 0.0
    returns, ends, waiting = [], [], router.waiting
    for index in range(rounds):
        at = index % len(running)
        back = partial(_come_back, router, running[at], now + 1e-3 * index)
        microseconds, running[at] = _timed(back)
        returns.append(microseconds)
    for dispatch in running[:rounds]:
        ends.append(_timed(partial(_end, router, dispatch, now + 1e-3 * rounds))[0])
    assert waiting >= QUEUED, waiting
    assert router.waiting < waiting, "no trajectory was admitted"
    row = {"kind": "decision", "replicas": REPLICAS, "queued": waiting, "bytes a trajectory": bytes_used / trajectories}
    return [
        {**row, "decision": "answer, return home", **_summary(returns)},
        {**row, "decision": "end, admit the next", **_summary(ends)},
    ]


def _come_back(router: CacheAwareRouter, dispatch: Dispatch, now: float) -> Dispatch:
    trajectory, number = dispatch.request_id  # type: ignore[misc]
    router.finished(dispatch.request_id, dispatch.attempt, TurnResult(OUTPUT_TOKENS), now)
    router.submit(_turn(trajectory, number + 1, FIRST_TOKENS + 500), now)
    return next(action for action in router.poll(now) if isinstance(action, Dispatch))


def _end(router: CacheAwareRouter, dispatch: Dispatch, now: float) -> None:
    router.finished(dispatch.request_id, dispatch.attempt, TurnResult(OUTPUT_TOKENS, ended=True), now)
    router.poll(now)


def _timed(call: Callable[[], Result]) -> tuple[float, Result]:
    start = time.thread_time_ns()
    result = call()
    return (time.thread_time_ns() - start) / 1e3, result


def _summary(microseconds: list[float]) -> dict[str, float]:
    ordered = sorted(microseconds)
    return {
        "mean us": statistics.fmean(ordered),
        "median us": statistics.median(ordered),
        "p99 us": ordered[int(0.99 * len(ordered))],
    }
