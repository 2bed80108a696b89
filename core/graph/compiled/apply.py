"""Elementary actions: whether they are possible, and what they change."""

from __future__ import annotations

import numpy as np

from slipstream.core.graph.compiled.advance import kind_on, occupants
from slipstream.core.graph.compiled.curves import refill_seconds
from slipstream.core.graph.compiled.model import (
    GANG,
    HALF,
    ZERO,
    Actions,
    Curves,
    Flag,
    Ints,
    Kind,
    State,
    World,
    int64,
)
from slipstream.core.graph.compiled.redistribute import redistribute
from slipstream.triton_kernels.jit import jit

_NOBODY = int64(-1)
_GATE = 1.2  # two of a kind share a worker only for this combined rate: without it both rollouts start together
_PAUSE, _SUBSET, _MERGE, _CORUN = (
    int64(Flag.PAUSE),
    int64(Flag.SUBSET),
    int64(Flag.MERGE),
    int64(Flag.CORUN),
)
_GANG_START, _GANG_ALONE, _START, _START_EMPTY = (
    int64(Kind.START_GANG),
    int64(Kind.START_GANG_ALONE),
    int64(Kind.START),
    int64(Kind.START_ON_EMPTY),
)
_START_SUBSET, _REDISTRIBUTE, _RUN_ALONE = (
    int64(Kind.START_ON_SUBSET),
    int64(Kind.REDISTRIBUTE),
    int64(Kind.RUN_ALONE),
)


@jit
def gang_waits(state: State, p: int) -> bool:
    """Whether the next gang stage could start."""
    return bool(state.rolled[p] > state.trained[p] and state.gang_on[p] == 0)


@jit
def rollout_waits(world: World, state: State, p: int) -> bool:
    """Whether a fresh rollout could start."""
    return bool(
        state.rolling[p] == 0
        and state.rolled[p] < world.steps[p]
        and state.rolled[p] - state.trained[p] <= world.staleness[p]
    )


@jit
def paused_chains(state: State, p: int) -> int:
    """Return on how many workers the rollout is paused or not started."""
    count = 0
    for w in range(state.curve.shape[1]):
        if state.curve[p, w] >= 0 and state.on[p, w] == 0:
            count += 1
    return count


@jit
def gang_fits(world: World, curves: Curves, state: State, occupied: Ints, p: int) -> bool:
    """Whether the gang stage can run beside what is running: one occupant a worker, memory, rates."""
    kind = GANG + state.phase[p]
    for w in range(occupied.shape[0]):
        other = occupied[w, 0]
        if other < 0:
            continue
        if occupied[w, 1] >= 0 or not world.allowed[_CORUN]:
            return False
        q = other >> 1
        if world.floors[p, 1] + world.floors[q, other & 1] > 1.0:
            return False
        beside = kind_on(curves, state, other, w)
        if other & 1 and world.rates[kind, beside] + world.rates[beside, kind] < _GATE:
            return False
    return True


@jit
def rollout_fits(world: World, curves: Curves, state: State, occupied: Ints, p: int, w: int, fresh: bool) -> bool:
    """Whether a worker can take a rollout of `p` beside what is running there."""
    other = occupied[w, 0]
    if other < 0:
        return True
    if occupied[w, 1] >= 0 or not world.allowed[_CORUN] or world.floors[p, 0] + world.floors[other >> 1, other & 1] > 1:
        return False
    if other & 1:
        return True
    kind = HALF
    if not fresh:
        kind = curves.load[state.curve[p, w], state.piece[p, w]]
    beside = kind_on(curves, state, other, w)
    return bool(world.rates[kind, beside] + world.rates[beside, kind] >= _GATE)


@jit
def _pause_all(world: World, curves: Curves, state: State, but: int) -> None:
    pipelines, workers = state.curve.shape
    for p in range(pipelines):
        if p == but:
            continue
        for w in range(workers):
            if state.on[p, w]:
                state.on[p, w] = 0
                curve, elapsed = state.curve[p, w], state.elapsed[p, w]
                if elapsed > 0.0:  # what had not begun has its own prefill to do
                    state.debt[p, w] = refill_seconds(world, curves, p, curve, elapsed)


@jit
def _deal(world: World, curves: Curves, state: State, p: int, layout: int, workers: Ints) -> None:
    """Put the fresh curves of a layout on `workers`, in order, not running."""
    curve = world.dealt[p, state.rolled[p], layout]
    state.rolling[p] = 1
    state.chains[p] = world.layouts[layout]
    state.mark[p] = 0
    state.curve[p, :] = -1
    for i in range(world.layouts[layout]):
        w = workers[i]
        state.curve[p, w] = curve + i
        state.elapsed[p, w] = 0.0
        state.piece[p, w] = 0
        state.on[p, w] = 0
        state.debt[p, w] = refill_seconds(world, curves, p, curve + i, 0.0)


@jit
def _start(world: World, curves: Curves, state: State, occupied: Ints, p: int, empty_only: bool) -> bool:
    fresh = rollout_waits(world, state, p)
    workers = occupied.shape[0]
    fits = np.zeros(workers, np.int64)
    count = wanted = 0
    for w in range(workers):
        if fresh or (state.curve[p, w] >= 0 and state.on[p, w] == 0):
            wanted += 1
            if occupied[w, 0] < 0 or (not empty_only and rollout_fits(world, curves, state, occupied, p, w, fresh)):
                fits[w] = 1
                count += 1
    if count == 0 or (count < wanted and not world.allowed[_SUBSET]):
        return False
    if fresh:
        _deal(world, curves, state, p, ZERO, np.arange(workers))
    for w in range(workers):
        if fits[w]:
            state.on[p, w] = 1
    return True


@jit
def _start_subset(world: World, curves: Curves, state: State, occupied: Ints, p: int, layout: int) -> bool:
    fresh = rollout_waits(world, state, p)
    if not fresh or not world.allowed[_SUBSET]:
        return False
    chosen = np.empty(occupied.shape[0], np.int64)
    count = 0
    for beside in range(2):
        for w in range(occupied.shape[0]):
            if (occupied[w, 0] >= 0) == (beside == 1) and rollout_fits(world, curves, state, occupied, p, w, fresh):
                chosen[count] = w
                count += 1
    if world.dealt[p, state.rolled[p], layout] < 0 or count < world.layouts[layout]:
        return False
    _deal(world, curves, state, p, layout, chosen)
    for i in range(world.layouts[layout]):
        state.on[p, chosen[i]] = 1
    return True


@jit
def apply(world: World, curves: Curves, state: State, occupied: Ints, kind: int, p: int, argument: int) -> bool:
    """Do one action; False, with nothing changed, when it is not possible.

    Args:
        occupied: int64[W, 2], overwritten.
    """
    occupants(state, occupied)
    if kind == _GANG_START:
        if not gang_waits(state, p) or not gang_fits(world, curves, state, occupied, p):
            return False
        state.gang_on[p] = 1
        return True
    if kind == _GANG_ALONE:
        if not gang_waits(state, p) or not world.allowed[_PAUSE] or state.gang_on.sum() > 0:
            return False
        _pause_all(world, curves, state, _NOBODY)
        state.gang_on[p] = 1
        return True
    if kind == _START_SUBSET:
        return _start_subset(world, curves, state, occupied, p, argument)
    if kind == _REDISTRIBUTE:
        return bool(world.allowed[_MERGE]) and redistribute(world, curves, state, occupied, p, argument)
    if kind == _RUN_ALONE:
        if not world.allowed[_PAUSE] or not (paused_chains(state, p) > 0 or rollout_waits(world, state, p)):
            return False
        _pause_all(world, curves, state, p)
        occupants(state, occupied)
    return _start(world, curves, state, occupied, p, kind == _START_EMPTY)


@jit
def apply_all(world: World, curves: Curves, state: State, occupied: Ints, actions: Actions) -> int:
    """Do actions in order, leaving out those that are not possible; returns how many were."""
    done = 0
    for i in range(actions.shape[0]):
        if apply(world, curves, state, occupied, actions[i, 0], actions[i, 1], actions[i, 2]):
            done += 1
    return done
