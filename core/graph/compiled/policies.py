"""Rules that decide at once: the greedy rule that play-outs follow, and two published ones to compare with."""

from __future__ import annotations

import numpy as np

from slipstream.core.graph.compiled.apply import apply, gang_waits, paused_chains, rollout_waits
from slipstream.core.graph.compiled.curves import expected_left, finished_requests, length, tokens_at
from slipstream.core.graph.compiled.model import (
    SYNC,
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
from slipstream.core.graph.compiled.redistribute import unfinished
from slipstream.triton_kernels.jit import jit

_CORUN = int64(Flag.CORUN)
_GANG_START, _GANG_ALONE, _START, _REDISTRIBUTE = (
    int64(Kind.START_GANG),
    int64(Kind.START_GANG_ALONE),
    int64(Kind.START),
    int64(Kind.REDISTRIBUTE),
)
_START_SUBSET = int64(Kind.START_ON_SUBSET)
_NOTHING = int64(-1)
GREEDY, GREEDY_UNMERGED, ROUND_ROBIN, THRESHOLD = 0, 1, 2, 3
TIGHT, LOOSE = 1.08, 1.30
_WORTH = 0.5  # greedy merges when at least half of the workers become free: there are few merges
_CAUTION = 1.15  # a merged worker's share of the work, over an even one
_TAIL = 0.2  # RLHFuse's kind of threshold: requests left


@jit
def rollout_left(curves: Curves, state: State, p: int) -> float:
    """Return the seconds until the rollout ends when every worker goes on alone."""
    most = 0.0
    for w in range(state.curve.shape[1]):
        curve = state.curve[p, w]
        if curve >= 0:
            most = max(most, state.debt[p, w] + length(curves, curve) - state.elapsed[p, w])
    return float(most)


@jit
def path_left(world: World, curves: Curves, state: State, p: int) -> float:
    """Return the seconds until the pipeline ends when it has every worker alone."""
    gang = 0.0
    if state.rolled[p] > state.trained[p]:
        gang = state.gang_left[p]
        for stage in range(state.phase[p] + 1, SYNC + 1):
            gang += world.stages[p, state.trained[p], stage]
    if not state.rolling[p]:
        return gang + float(world.rest[p, state.rolled[p]])
    left = rollout_left(curves, state, p)
    step = state.rolled[p]
    own = world.stages[p, step].sum() - state.credit[p]
    return float(max(left, gang) + own + world.rest[p, step + 1])


@jit
def merge_size(world: World, curves: Curves, state: State, p: int, slack: float, most: float = 1.0) -> int:
    """Return the fewest workers that end the rollout by `slack` times its unmerged end, as predicted; 0 for no
    merge."""
    total = sources = 0
    tokens_left = longest = contexts = 0.0
    for w in range(state.curve.shape[1]):
        curve = state.curve[p, w]
        if curve < 0:
            continue
        sources += 1
        ended = finished_requests(curves, curve, state.elapsed[p, w])
        tokens = tokens_at(curves, curve, state.elapsed[p, w], ended, world.iteration[p], world.per_request[p])
        first = curves.first[curve]
        total += curves.size[curve] - ended
        for i in range(first + ended, first + curves.size[curve]):
            left = expected_left(curves, i, tokens)
            tokens_left += left
            longest = max(longest, left)
            contexts += world.prompt[p] + curves.already[i] + tokens
    if sources < 2 or total == 0:
        return 0
    limit = slack * rollout_left(curves, state, p)
    work = _CAUTION * (world.per_request[p] * tokens_left + world.prefill[p] * contexts)
    for k in range(1, min(sources, int(most * sources) + 1)):
        if total <= world.crowd[p] * k and world.iteration[p] * longest + work / k <= limit:
            return k
    return 0


@jit
def someone_waits(world: World, state: State, but: int) -> bool:
    """Whether another pipeline's rollout could use workers."""
    for q in range(state.rolled.size):
        if q != but and (rollout_waits(world, state, q) or paused_chains(state, q) > 0):
            return True
    return False


@jit
def by_longest_path(world: World, curves: Curves, state: State) -> Ints:
    """Return the pipelines, those with most to do first."""
    paths = np.empty(state.rolled.size)
    for p in range(paths.size):
        paths[p] = -path_left(world, curves, state, p)
    return np.argsort(paths, kind="mergesort")


@jit
def greedy(world: World, curves: Curves, state: State, occupied: Ints, merges: bool, out: Actions) -> int:
    """Do what the greedy rule does now: gang stages beside what runs, merges that somebody can use, rollouts on every
    worker that can take them (fresh ones on as many as `world.preferred` says), gang stages alone where they cannot run
    beside.

    Returns:
        how many actions were written into `out`, int64[n, 3].
    """
    n = ZERO
    order = by_longest_path(world, curves, state)
    for _ in range(8):
        before = n
        for rule in range(5):
            for p in order:
                kind, argument = _proposal(world, curves, state, occupied, rule, p, merges)
                if kind >= 0 and n < out.shape[0] and apply(world, curves, state, occupied, kind, p, argument):
                    out[n, 0], out[n, 1], out[n, 2] = kind, p, argument
                    n += 1
        if n == before:
            break
    return n


@jit
def _proposal(
    world: World, curves: Curves, state: State, occupied: Ints, rule: int, p: int, merges: bool
) -> tuple[int, int]:
    """Return the action that one of the greedy rules has for a pipeline; kind -1 for none."""
    if rule == 0 and gang_waits(state, p):
        return _GANG_START, ZERO
    if rule == 1 and merges and state.rolling[p] and someone_waits(world, state, p):
        size = merge_size(world, curves, state, p, TIGHT, _WORTH)
        if size > 0:
            return _REDISTRIBUTE, size
    if rule == 2 and not world.allowed[_CORUN] and gang_waits(state, p):
        return _GANG_ALONE, ZERO
    if rule == 3:
        if world.preferred[p] > 0 and rollout_waits(world, state, p):
            return _START_SUBSET, world.preferred[p]
        return _START, ZERO
    if rule == 4 and world.allowed[_CORUN] and gang_waits(state, p) and _memory_forbids(world, state, p):
        return _GANG_ALONE, ZERO
    return _NOTHING, ZERO


@jit
def _memory_forbids(world: World, state: State, p: int) -> bool:
    """Whether rollouts that run now leave no room for the gang stage of `p`."""
    forbids = False
    for q in range(state.rolled.size):
        forbids = forbids or (state.on[q].any() and world.floors[q, 0] + world.floors[p, 1] > 1.0)
    return forbids


@jit
def round_robin(world: World, curves: Curves, state: State, occupied: Ints, merges: bool, out: Actions) -> int:
    """Whoever has trained fewest steps goes first, nothing is paused (RollMux's order, arXiv 2512.11306, on one pool).

    With `merges`, a rollout with less than a fifth of its requests left is merged first (RLHFuse's rule, arXiv
    2409.13221).
    """
    order = np.argsort(state.trained.astype(np.float64), kind="mergesort")
    n = ZERO
    for rule in range(3):
        for p in order:
            kind, argument = _START, ZERO
            if rule == 0:
                kind, argument = _REDISTRIBUTE, _tail_size(world, curves, state, p) if merges else ZERO
            elif rule == 1:
                kind = _GANG_START
            if (kind != _REDISTRIBUTE or argument > 0) and apply(world, curves, state, occupied, kind, p, argument):
                out[n, 0], out[n, 1], out[n, 2] = kind, p, argument
                n += 1
    return n


@jit
def _tail_size(world: World, curves: Curves, state: State, p: int) -> int:
    """Return how many workers the threshold rule merges a rollout onto; 0 for none."""
    if not state.rolling[p] or state.merges[p] > 0:
        return ZERO
    left = sources = 0
    for w in range(state.curve.shape[1]):
        left += unfinished(curves, state, p, w)
        sources += state.curve[p, w] >= 0
    dealt = world.crowd[p] / 4.0
    size = max(1, int(np.ceil(left / dealt)))
    return size if left < _TAIL * dealt * state.curve.shape[1] and size < sources else ZERO


@jit
def decide(world: World, curves: Curves, state: State, occupied: Ints, policy: int, out: Actions) -> int:
    """Do what a policy does now; returns how many actions were written into `out`, int64[n, 3]."""
    if policy in (ROUND_ROBIN, THRESHOLD):
        return round_robin(world, curves, state, occupied, policy == THRESHOLD, out)
    return greedy(world, curves, state, occupied, policy == GREEDY, out)
