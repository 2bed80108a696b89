"""What a planner takes the present for: what is observed of the running rollouts, with predicted remaining lengths."""

from __future__ import annotations

import numpy as np

from slipstream.core.graph.compiled.curves import (
    build,
    expected_left,
    finished_requests,
    length,
    tokens_at,
)
from slipstream.core.graph.compiled.model import (
    ZERO,
    Curves,
    Floats,
    State,
    World,
)
from slipstream.triton_kernels.jit import jit


@jit
def add_rollouts(
    world: World, curves: Curves, p: int, lengths: Floats, expected: Floats, layout: int, group: int
) -> int:
    """Add the curves of a fresh rollout dealt round robin; returns the first one's index.

    Args:
        lengths: float64[n], tokens of each request.
        expected: float64[n], the same as the planner believes it.
        layout: index of the layout, in workers of the planner; each stands for `group` real ones and takes the curve of
            the slowest.
    """
    planned = world.layouts[layout]
    dealt = planned * group
    begin = curves.used[0]
    for target in range(planned):
        best = 0.0
        mark0, mark1 = curves.used[0], curves.used[1]
        chosen = target * group
        for attempt in range(group + 1):
            # the last round writes the slowest one for good
            worker = chosen if attempt == group else target * group + attempt
            count = ZERO
            for r in range(worker, lengths.size, dealt):
                place = curves.used[1] + count
                curves.remaining[place] = lengths[r]
                curves.expected[place] = expected[r]
                curves.already[place] = 0.0
                curves.request[place] = r
                count += 1
            curve = build(curves, count, world.iteration[p], world.per_request[p])
            if attempt == group or group == 1:
                break
            if length(curves, curve) > best:
                best = length(curves, curve)
                chosen = worker
            curves.used[0], curves.used[1] = mark0, mark1
    return int(begin)


@jit
def believe(
    world: World,
    seen_curves: Curves,
    seen: State,
    curves: Curves,
    state: State,
    previous: Floats,
    ranks: Floats,
) -> None:
    """Write the planner's view of the present.

    Args:
        seen_curves: curves of the real workers; only requests that have not ended, their tokens so far and their
            `expected` lengths are used.
        seen: the observed state, on a multiple of the planner's workers.
        curves: the planner's arena; curves of unfinished rollouts are added.
        state: overwritten.
        previous: float64[P, n] ascending, lengths of the last step, or no columns. Where there are some, nothing is
            known of single requests: each takes the quantile `ranks` of the lengths that exceed what it has generated.
        ranks: float64[n] in [0, 1).
    """
    pipelines, workers = state.curve.shape
    group = seen.curve.shape[1] // workers
    state.clock[:] = seen.clock
    state.rolled[:] = seen.rolled
    state.rolling[:] = seen.rolling
    state.trained[:] = seen.trained
    state.phase[:] = seen.phase
    state.gang_on[:] = seen.gang_on
    state.gang_left[:] = seen.gang_left
    state.credit[:] = seen.credit
    state.carried[:] = seen.carried
    state.merges[:] = seen.merges
    state.mark[:] = seen.mark
    state.finished[:] = seen.finished
    for p in range(pipelines):
        state.chains[p] = max(1, seen.chains[p] // group)
        for target in range(workers):
            state.curve[p, target] = -1
            state.elapsed[p, target] = 0.0
            state.piece[p, target] = 0
            state.debt[p, target] = 0.0
            state.on[p, target] = 0
            best = -1.0
            mark0, mark1 = curves.used[0], curves.used[1]
            for w in range(target * group, target * group + group):
                old = seen.curve[p, w]
                if old < 0:
                    continue
                state.on[p, target] = max(state.on[p, target], seen.on[p, w])
                here0, here1 = curves.used[0], curves.used[1]
                count = _remaining(world, seen_curves, seen, p, w, curves, previous, ranks)
                curve = build(curves, count, world.iteration[p], world.per_request[p])
                left = seen.debt[p, w] + length(curves, curve)
                if left > best:
                    best = left
                    _keep(curves, curve, mark0, mark1)
                    state.curve[p, target] = mark0
                    state.debt[p, target] = seen.debt[p, w]
                    here0, here1 = mark0 + 1, mark1 + curves.size[mark0]
                curves.used[0], curves.used[1] = here0, here1


@jit
def _remaining(
    world: World, seen_curves: Curves, seen: State, p: int, w: int, curves: Curves, previous: Floats, ranks: Floats
) -> int:
    """Write the unfinished requests of a worker behind the places in use; returns how many."""
    old = seen.curve[p, w]
    ended = finished_requests(seen_curves, old, seen.elapsed[p, w])
    tokens = tokens_at(seen_curves, old, seen.elapsed[p, w], ended, world.iteration[p], world.per_request[p])
    first = seen_curves.first[old]
    count = ZERO
    for i in range(first + ended, first + seen_curves.size[old]):
        place = curves.used[1] + count
        generated = seen_curves.already[i] + tokens
        left = expected_left(seen_curves, i, tokens)
        if previous.shape[1] > 0:
            longer = np.searchsorted(previous[p], generated, side="right")
            rank = longer + np.int64(ranks[seen_curves.request[i]] * (previous.shape[1] - longer))
            left = previous[p, rank] - generated if rank < previous.shape[1] else 0.25 * generated
        curves.remaining[place] = max(left, 1e-3)
        curves.expected[place] = max(left, 1e-3)
        curves.already[place] = generated
        curves.request[place] = seen_curves.request[i]
        count += 1
    return count


@jit
def _keep(curves: Curves, curve: int, index: int, place: int) -> None:
    """Move a curve, with its requests, down to `index` and `place`."""
    if curve == index:
        return
    count = curves.size[curve]
    first = curves.first[curve]
    for i in range(count):
        curves.remaining[place + i] = curves.remaining[first + i]
        curves.expected[place + i] = curves.expected[first + i]
        curves.done_at[place + i] = curves.done_at[first + i]
        curves.already[place + i] = curves.already[first + i]
        curves.request[place + i] = curves.request[first + i]
    curves.end[index] = curves.end[curve]
    curves.load[index] = curves.load[curve]
    curves.pieces[index] = curves.pieces[curve]
    curves.first[index] = place
    curves.size[index] = count
