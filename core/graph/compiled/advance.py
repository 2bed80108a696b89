"""Time passes: everything that runs makes progress until something happens that a scheduler wants to know."""

from __future__ import annotations

import numpy as np

from slipstream.core.graph.compiled.curves import finished_requests, tokens_at
from slipstream.core.graph.compiled.model import (
    GANG,
    LIGHT,
    LOGPROB,
    SYNC,
    ZERO,
    Curves,
    Flag,
    Floats,
    Ints,
    State,
    World,
    int64,
)
from slipstream.triton_kernels.jit import jit

_MARKS = np.array((0.5, 0.9))
_OVERLAPPING = int64(Flag.OVERLAP)
_OVERLAP = 0.9  # most of the finished groups' log-prob that is done ahead


@jit
def occupants(state: State, occupied: Ints) -> None:
    """Write who is on each worker into int64[W, 2]: 2 * pipeline for a rollout, 2 * pipeline + 1 for a gang stage,
    -1."""
    pipelines, workers = state.curve.shape
    occupied[:] = -1
    for p in range(pipelines):
        for w in range(workers):
            if state.gang_on[p]:
                occupied[w, 0 if occupied[w, 0] < 0 else 1] = 2 * p + 1
            if state.on[p, w]:
                occupied[w, 0 if occupied[w, 0] < 0 else 1] = 2 * p


@jit
def kind_on(curves: Curves, state: State, occupant: int, worker: int) -> int:
    """Return the kind of load of an occupant of a worker."""
    p = occupant >> 1
    if occupant & 1:
        return GANG + int(state.phase[p])
    return int(curves.load[state.curve[p, worker], state.piece[p, worker]])


@jit
def finished_share(world: World, curves: Curves, state: State, p: int) -> float:
    """Return the share of the rollout's tokens in groups that have certainly ended."""
    reached = np.inf
    for w in range(state.curve.shape[1]):
        curve = state.curve[p, w]
        if curve >= 0:
            ended = finished_requests(curves, curve, state.elapsed[p, w])
            first = curves.first[curve]
            tokens = tokens_at(curves, curve, state.elapsed[p, w], ended, world.iteration[p], world.per_request[p])
            for i in range(first + ended, first + curves.size[curve]):
                reached = min(reached, curves.already[i] + tokens)
    low, high = 0, world.group_end.shape[2]
    step = state.rolled[p]
    while low < high:
        middle = (low + high) >> 1
        if world.group_end[p, step, middle] <= reached:
            low = middle + 1
        else:
            high = middle
    return float(world.group_share[p, step, low - 1]) if low > 0 else 0.0


@jit
def open_gang(world: World, state: State, p: int) -> None:
    """Make the gang of the next trained step wait for its start, less what was done ahead."""
    state.phase[p] = LOGPROB
    state.gang_left[p] = world.stages[p, state.trained[p], LOGPROB] - state.carried[p]
    state.carried[p] = 0.0
    _skip_empty(world, state, p)


@jit
def _skip_empty(world: World, state: State, p: int) -> None:
    """Go on to the next stage with something to do; the sync is the last in any case."""
    while state.phase[p] < SYNC and state.gang_left[p] <= 1e-9:
        state.phase[p] += 1
        state.gang_left[p] = world.stages[p, state.trained[p], state.phase[p]]


@jit
def _end_gang(world: World, state: State, p: int) -> None:
    """Go on behind a stage that has ended: to the next one, or to the next step."""
    state.gang_on[p] = 0
    if state.phase[p] < SYNC:
        state.phase[p] += 1
        state.gang_left[p] = world.stages[p, state.trained[p], state.phase[p]]
        _skip_empty(world, state, p)
        if state.gang_left[p] > 1e-9:
            return
    state.trained[p] += 1
    if state.trained[p] == world.steps[p]:
        state.finished[p] = state.clock[0]
    elif state.rolled[p] > state.trained[p]:
        open_gang(world, state, p)


@jit
def _end_rollout(world: World, state: State, p: int) -> None:
    state.rolled[p] += 1
    state.rolling[p] = 0
    state.merges[p] = 0
    state.carried[p] = state.credit[p]
    state.credit[p] = 0.0
    if state.trained[p] == state.rolled[p] - 1:
        open_gang(world, state, p)


@jit
def _work_ahead(world: World, curves: Curves, state: State, idle: int, seconds: float) -> None:
    """Idle workers take log-prob of finished groups of a rollout in progress."""
    pipelines, workers = state.curve.shape
    for p in range(pipelines):
        if state.rolling[p]:
            most = _OVERLAP * finished_share(world, curves, state, p) * world.stages[p, state.rolled[p], LOGPROB]
            if state.credit[p] < most:
                state.credit[p] = min(most, state.credit[p] + seconds * idle / workers)
                return


@jit
def _passed_mark(curves: Curves, state: State, p: int) -> bool:
    """Whether half, or nearly all, of the rollout's workers have now become light, lighter, lightest or empty."""
    heavier = np.zeros(LIGHT + 1, np.int64)  # workers at or above each class; the last counts all that are not empty
    for w in range(state.curve.shape[1]):
        if state.curve[p, w] >= 0:
            load = curves.load[state.curve[p, w], state.piece[p, w]]
            for level in range(LIGHT):
                heavier[level] += load > level
            heavier[LIGHT] += 1
    passed = False
    for level in range(LIGHT + 1):
        for i in range(_MARKS.size):
            bit = 1 << (level * _MARKS.size + i)
            if not state.mark[p] & bit and heavier[level] <= (1.0 - _MARKS[i]) * state.chains[p]:
                state.mark[p] |= bit
                passed = True
    return passed


@jit
def _awaited(state: State, worker: int) -> bool:
    """Whether a paused rollout could go on on a worker."""
    return bool(((state.curve[:, worker] >= 0) & (state.on[:, worker] == 0)).any())


@jit
def advance(world: World, curves: Curves, state: State, occupied: Ints, log: Floats, logged: Ints) -> bool:
    """Let time pass until a decision is due or nothing runs any more; False when nothing was running.

    A decision is due when a gang stage or a rollout ends, when a worker becomes free that a rollout waits for, and
    along a rollout's tail: when half and when nearly all of its workers have fallen below u = 0.2, 0.1 and 0.05, and
    when they have ended (with a quantum: at every end of a piece).

    Specification: on a worker with two occupants of kinds a and b, a progresses at rates[a, b]; a gang stage at the
    least of its workers' rates. Idle workers do log-prob of finished groups ahead, where that is allowed.

    Args:
        occupied: int64[W, 2], overwritten.
        log: float64[n, 7] (pipeline, worker, kind, step, start, end, rate), appended to while there is room; the
            simulator reads it, play-outs pass one without rows.
        logged: int64[1], rows in use.
    """
    pipelines, workers = state.curve.shape
    rate = np.ones((pipelines, workers))
    gang_rate = np.ones(pipelines)
    happened = False
    while True:
        occupants(state, occupied)
        gang_rate[:] = 1.0
        idle = ZERO
        for w in range(workers):
            a, b = occupied[w, 0], occupied[w, 1]
            if a < 0:
                idle += 1
                continue
            rate_a = rate_b = 1.0
            if b >= 0:
                kind_a, kind_b = kind_on(curves, state, a, w), kind_on(curves, state, b, w)
                rate_a, rate_b = world.rates[kind_a, kind_b], world.rates[kind_b, kind_a]
                if b & 1:
                    gang_rate[b >> 1] = min(gang_rate[b >> 1], rate_b)
                else:
                    rate[b >> 1, w] = rate_b
            if a & 1:
                gang_rate[a >> 1] = min(gang_rate[a >> 1], rate_a)
            else:
                rate[a >> 1, w] = rate_a
        seconds = np.inf
        for p in range(pipelines):
            if state.gang_on[p]:
                seconds = min(seconds, state.gang_left[p] / gang_rate[p])
            for w in range(workers):
                if state.on[p, w]:
                    left = state.debt[p, w] + curves.end[state.curve[p, w], state.piece[p, w]] - state.elapsed[p, w]
                    seconds = min(seconds, left / rate[p, w])
        if seconds == np.inf:
            return happened
        happened = True
        if world.quantum > 0.0:
            seconds = max(1.0, np.ceil(seconds / world.quantum - 1e-6)) * world.quantum
        seconds = max(seconds, 0.0)
        if idle > 0 and world.allowed[_OVERLAPPING]:
            _work_ahead(world, curves, state, idle, seconds)
        if log.shape[0] > 0:
            _write_log(curves, state, occupied, rate, gang_rate, seconds, log, logged)
        state.clock[0] += seconds
        due = False
        for p in range(pipelines):
            if state.gang_on[p]:
                state.gang_left[p] -= seconds * gang_rate[p]
                if state.gang_left[p] <= 1e-9:
                    _end_gang(world, state, p)
                    due = True
            moved = False
            for w in range(workers):
                if not state.on[p, w]:
                    continue
                curve, piece = state.curve[p, w], state.piece[p, w]
                done = seconds * rate[p, w]
                paid = min(done, state.debt[p, w])
                state.debt[p, w] -= paid
                state.elapsed[p, w] += done - paid
                if state.elapsed[p, w] >= curves.end[curve, piece] - 1e-9:
                    state.elapsed[p, w] = curves.end[curve, piece]
                    moved = True
                    if piece + 1 < curves.pieces[curve]:
                        state.piece[p, w] += 1
                    else:
                        state.on[p, w] = 0
                        state.curve[p, w] = -1
                        due = due or _awaited(state, w)
            if moved:
                due = due or world.quantum > 0.0
                left_over = False
                for w in range(workers):
                    left_over = left_over or state.curve[p, w] >= 0
                if not left_over:
                    _end_rollout(world, state, p)
                    due = True
                elif _passed_mark(curves, state, p):
                    due = True
        if due:
            return True


@jit
def _write_log(
    curves: Curves,
    state: State,
    occupied: Ints,
    rate: Floats,
    gang_rate: Floats,
    seconds: float,
    log: Floats,
    logged: Ints,
) -> None:
    for w in range(occupied.shape[0]):
        for slot in range(2):
            occupant = occupied[w, slot]
            if occupant < 0 or logged[0] >= log.shape[0] or seconds <= 0.0:
                continue
            p = occupant >> 1
            row = log[logged[0]]
            row[0], row[1], row[2] = p, w, kind_on(curves, state, occupant, w)
            row[3] = state.trained[p] if occupant & 1 else state.rolled[p]
            row[4], row[5] = state.clock[0], state.clock[0] + seconds
            row[6] = gang_rate[p] if occupant & 1 else rate[p, w]
            logged[0] += 1
