"""Unfinished requests of one rollout move between workers: merges and expansions."""

from __future__ import annotations

import numpy as np

from slipstream.core.graph.compiled.curves import build, expected_left, finished_requests, tokens_at
from slipstream.core.graph.compiled.model import (
    MOST_MERGES,
    ZERO,
    Curves,
    Ints,
    State,
    World,
)
from slipstream.triton_kernels.jit import jit


@jit
def unfinished(curves: Curves, state: State, p: int, w: int) -> int:
    """Return how many requests of the rollout are left on a worker."""
    curve = state.curve[p, w]
    if curve < 0:
        return 0
    return int(curves.size[curve]) - finished_requests(curves, curve, state.elapsed[p, w])


@jit
def _targets(curves: Curves, state: State, occupied: Ints, p: int, wanted: int) -> Ints:
    """Return the workers that keep or get requests: those that have most, then empty ones."""
    workers = occupied.shape[0]
    have = np.empty(workers)
    for w in range(workers):
        if state.curve[p, w] >= 0:
            have[w] = -1.0 - unfinished(curves, state, p, w)
        elif occupied[w, 0] < 0:
            have[w] = 0.0
        else:
            have[w] = np.inf
    order = np.argsort(have, kind="mergesort")
    count = 0
    while count < wanted and count < workers and have[order[count]] < np.inf:
        count += 1
    return order[:count]


@jit
def redistribute(world: World, curves: Curves, state: State, occupied: Ints, p: int, wanted: int) -> bool:
    """Spread the unfinished requests of a rollout over `wanted` workers; False when that is not possible.

    The workers with most requests stay. Each keeps its own up to an even share, those that are expected to be longest;
    the others move, longest expected first, to the worker with the least expected tokens, where their contexts are
    prefilled again.
    """
    if not state.rolling[p] or state.merges[p] >= MOST_MERGES or wanted < 1:
        return False
    workers = occupied.shape[0]
    total = sources = 0
    for w in range(workers):
        total += unfinished(curves, state, p, w)
        sources += state.curve[p, w] >= 0
    targets = _targets(curves, state, occupied, p, wanted)
    count = targets.size
    if total == 0 or count == sources or count != wanted or total > world.crowd[p] * count:
        return False
    if curves.used[0] + count > curves.pieces.size or curves.used[1] + 2 * total > curves.request.size:
        return False
    # unfinished requests in rows: remaining, expected, already, request, where it goes, where it was
    rows = np.empty((total, 6))
    at = 0
    slot_of = np.full(workers, -1)
    for i in range(count):
        slot_of[targets[i]] = i
    even = (total + count - 1) // count
    load = np.zeros(count)
    for w in range(workers):
        curve = state.curve[p, w]
        if curve < 0:
            continue
        ended = finished_requests(curves, curve, state.elapsed[p, w])
        tokens = tokens_at(curves, curve, state.elapsed[p, w], ended, world.iteration[p], world.per_request[p])
        first, begin = curves.first[curve], at
        for i in range(first + ended, first + curves.size[curve]):
            rows[at, 0] = max(curves.remaining[i] - tokens, 1e-3)
            rows[at, 1] = expected_left(curves, i, tokens)
            rows[at, 2] = curves.already[i] + tokens
            rows[at, 3] = curves.request[i]
            rows[at, 4] = -1
            rows[at, 5] = w
            at += 1
        if slot_of[w] >= 0:
            order = np.argsort(-rows[begin:at, 1], kind="mergesort")
            for i in range(min(even, order.size)):
                rows[begin + order[i], 4] = slot_of[w]
                load[slot_of[w]] += rows[begin + order[i], 1]
    moved = np.zeros(count)  # contexts to prefill
    for i in np.argsort(-rows[:, 1], kind="mergesort"):
        if rows[i, 4] < 0:
            slot = int(np.argmin(load))
            rows[i, 4] = slot
            load[slot] += rows[i, 1]
            moved[slot] += world.prompt[p] + rows[i, 2]
    for w in range(workers):
        if state.curve[p, w] >= 0 and slot_of[w] < 0:
            state.curve[p, w] = -1
            state.on[p, w] = 0
            state.debt[p, w] = 0.0
    for slot in range(count):
        w = targets[slot]
        number = ZERO
        for i in range(total):
            if rows[i, 4] == slot:
                place = curves.used[1] + number
                curves.remaining[place] = rows[i, 0]
                curves.expected[place] = rows[i, 1]
                curves.already[place] = rows[i, 2]
                curves.request[place] = np.int64(rows[i, 3])
                number += 1
        if number == 0:
            state.curve[p, w] = -1
            state.on[p, w] = 0
            continue
        if state.curve[p, w] < 0:
            state.on[p, w] = 1
            state.debt[p, w] = 0.0
        state.curve[p, w] = build(curves, number, world.iteration[p], world.per_request[p])
        state.elapsed[p, w] = 0.0
        state.piece[p, w] = 0
        state.debt[p, w] += moved[slot] * world.prefill[p]
    state.merges[p] += 1
    return True
