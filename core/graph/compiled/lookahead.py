"""One-step look-ahead: every candidate is followed by a play-out of the greedy rule, and the best first step is
taken."""

from __future__ import annotations

import numpy as np

from slipstream.core.graph.compiled.advance import advance
from slipstream.core.graph.compiled.apply import apply, gang_waits, paused_chains, rollout_waits
from slipstream.core.graph.compiled.model import (
    MOST_MERGES,
    Actions,
    Curves,
    Flag,
    Floats,
    Ints,
    Kind,
    State,
    World,
    copy_state,
    int64,
)
from slipstream.core.graph.compiled.policies import (
    GREEDY,
    GREEDY_UNMERGED,
    LOOSE,
    ROUND_ROBIN,
    TIGHT,
    decide,
    greedy,
    merge_size,
    path_left,
)
from slipstream.core.graph.compiled.redistribute import unfinished
from slipstream.triton_kernels.jit import jit

_GANG_START, _GANG_ALONE, _START, _START_EMPTY = (
    int64(Kind.START_GANG),
    int64(Kind.START_GANG_ALONE),
    int64(Kind.START),
    int64(Kind.START_ON_EMPTY),
)
_START_SUBSET, _REDISTRIBUTE = int64(Kind.START_ON_SUBSET), int64(Kind.REDISTRIBUTE)
_MERGE, _SUBSET, _PAUSE, _CORUN = (
    int64(Flag.MERGE),
    int64(Flag.SUBSET),
    int64(Flag.PAUSE),
    int64(Flag.CORUN),
)
_NO_LOG = np.zeros((0, 7))
LONGEST_SET = 32
_LATE = 1.0  # weight of a second over a pipeline's latency cap, beside a second of makespan


@jit
def play_out(world: World, curves: Curves, state: State, occupied: Ints, horizon: float, actions: Actions) -> float:
    """Follow the greedy rule until everything ends or `horizon` is passed; returns the estimated makespan.

    Past the horizon the rest counts as t + (max of paths + sum of paths / (1 + 0.35 (P - 1))) / 2. Seconds by which a
    pipeline misses its latency cap are added.

    Args:
        horizon: a clock reading.
        actions: int64[n, 3], scratch.
    """
    logged = np.zeros(1, np.int64)
    log = np.zeros((0, 7))
    while state.clock[0] < horizon:
        greedy(world, curves, state, occupied, True, actions)
        if not advance(world, curves, state, occupied, log, logged):
            break
    return estimate(world, curves, state)


@jit
def estimate(world: World, curves: Curves, state: State) -> float:
    """Return the estimated end of everything from here: see `play_out`."""
    pipelines = state.rolled.size
    longest = total = late = 0.0
    for p in range(pipelines):
        if state.finished[p] >= 0.0:
            late += max(0.0, state.finished[p] - world.cap[p])
        else:
            path = path_left(world, curves, state, p)
            longest = max(longest, path)
            total += path
            late += max(0.0, state.clock[0] + path - world.cap[p])
    return float(state.clock[0] + 0.5 * longest + 0.5 * total / (1.0 + 0.35 * (pipelines - 1)) + _LATE * late)


@jit
def elementary(world: World, curves: Curves, state: State, out: Actions) -> int:
    """Write every elementary action that may be possible now into `out`, int64[n, 3]; returns how many."""
    n = 0
    for p in range(state.rolled.size):
        if gang_waits(state, p):
            out[n] = (_GANG_START, p, 0)
            n += 1
            if state.on.any():
                out[n] = (_GANG_ALONE, p, 0)
                n += 1
        fresh = rollout_waits(world, state, p)
        if fresh or paused_chains(state, p) > 0:
            out[n] = (_START, p, 0)
            out[n + 1] = (_START_EMPTY, p, 0)
            n += 2
        if fresh:
            for layout in range(1, world.layouts.size):
                out[n] = (_START_SUBSET, p, layout)
                n += 1
        if state.rolling[p] and state.merges[p] < MOST_MERGES and world.allowed[_MERGE]:
            tight = merge_size(world, curves, state, p, TIGHT)
            loose = merge_size(world, curves, state, p, LOOSE)
            if tight > 0:
                out[n] = (_REDISTRIBUTE, p, tight)
                n += 1
            if loose > 0 and loose != tight:
                out[n] = (_REDISTRIBUTE, p, loose)
                n += 1
            n = _expansion(world, curves, state, p, out, n)
    return n


@jit
def _expansion(world: World, curves: Curves, state: State, p: int, out: Actions, n: int) -> int:
    left = sources = empty = 0
    for w in range(state.curve.shape[1]):
        left += unfinished(curves, state, p, w)
        sources += state.curve[p, w] >= 0
        empty += state.curve[p, w] < 0 and not state.on[:, w].any()
    if empty > 0 and not state.gang_on.any() and left > 2 * (sources + empty):
        out[n] = (_REDISTRIBUTE, p, sources + empty)
        n += 1
    return n


@jit
def candidates(
    world: World, curves: Curves, state: State, scratch: State, occupied: Ints, pairs: bool, sets: Ints
) -> int:
    """Write the sets of actions worth trying into `sets`, int64[n, LONGEST_SET, 3], kind -1 behind the last of each.

    The first is greedy's own; then greedy without merges, round robin, nothing, each elementary action, and each
    ordered pair of those.

    Returns:
        how many.
    """
    mark0, mark1 = curves.used[0], curves.used[1]
    n = 0
    sets[:, :, 0] = -1
    for policy in (GREEDY, GREEDY_UNMERGED, ROUND_ROBIN):
        copy_state(scratch, state)
        decide(world, curves, scratch, occupied, policy, sets[n])
        curves.used[0], curves.used[1] = mark0, mark1
        n += 1
    if state.on.any() or state.gang_on.any():
        n += 1
    single = np.zeros((16 * state.rolled.size, 3), np.int64)
    singles = elementary(world, curves, state, single)
    for i in range(singles):
        if n < sets.shape[0]:
            sets[n, 0] = single[i]
            n += 1
    if pairs:
        for i in range(singles):
            for j in range(singles):
                both_move = single[i, 0] == _REDISTRIBUTE and single[j, 0] == _REDISTRIBUTE
                if i != j and not both_move and n < sets.shape[0]:
                    sets[n, 0] = single[i]
                    sets[n, 1] = single[j]
                    n += 1
    return n


@jit
def try_set(world: World, curves: Curves, state: State, occupied: Ints, actions: Actions) -> bool:
    """Do a candidate's actions and let time pass to the next decision; False when it changes nothing or stalls."""
    i = 0
    while i < actions.shape[0] and actions[i, 0] >= 0:
        if not apply(world, curves, state, occupied, actions[i, 0], actions[i, 1], actions[i, 2]):
            return False
        i += 1
    logged = np.zeros(1, np.int64)
    return advance(world, curves, state, occupied, np.zeros((0, 7)), logged)


@jit
def look_ahead(
    world: World, curves: Curves, state: State, scratch: State, horizon: float, pairs: bool, sets: Ints, scores: Floats
) -> int:
    """Score every candidate with a full play-out.

    Args:
        scratch: overwritten.
        horizon: seconds that a play-out goes on at most.
        sets: int64[n, LONGEST_SET, 3], overwritten with the candidates.
        scores: float64[n], overwritten with the estimated makespan of each; infinite for what is not possible.

    Returns:
        how many candidates there are; the first is greedy's.
    """
    occupied = np.zeros((state.curve.shape[1], 2), np.int64)
    actions = np.zeros((LONGEST_SET, 3), np.int64)
    count = candidates(world, curves, state, scratch, occupied, pairs, sets)
    mark0, mark1 = curves.used[0], curves.used[1]
    for i in range(count):
        scores[i] = np.inf
        if _seen(sets, i):
            continue
        copy_state(scratch, state)
        if try_set(world, curves, scratch, occupied, sets[i]):
            scores[i] = play_out(world, curves, scratch, occupied, state.clock[0] + horizon, actions)
        curves.used[0], curves.used[1] = mark0, mark1
    return count


@jit
def _seen(sets: Ints, i: int) -> bool:
    """Whether an earlier candidate has the same actions."""
    for j in range(i):
        same = True
        k = 0
        while k < LONGEST_SET:
            if sets[i, k, 0] != sets[j, k, 0]:
                same = False
                break
            if sets[i, k, 0] < 0:
                break
            if sets[i, k, 1] != sets[j, k, 1] or sets[i, k, 2] != sets[j, k, 2]:
                same = False
                break
            k += 1
        if same:
            return True
    return False
