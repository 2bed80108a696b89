"""Curves of active requests: built from lengths, cut into pieces of one load class, read at a moment."""

from __future__ import annotations

import numpy as np

from slipstream.core.graph.compiled.model import DECODE_EDGES, GANG, Curves, World
from slipstream.triton_kernels.jit import jit

_EDGES = np.array(DECODE_EDGES)


@jit
def decode_class(active: int, iteration: float, per_request: float) -> int:
    """Return the class of a decode iteration with `active` requests."""
    load = per_request * active / (iteration + per_request * active)
    kind = 0
    while kind < GANG - 1 and load >= _EDGES[kind]:
        kind += 1
    return kind


@jit
def build(curves: Curves, count: int, iteration: float, per_request: float) -> int:
    """Add a curve over the `count` requests that were written behind the places in use; returns its index.

    Specification: sort the requests by `remaining`; with b of them active a token costs iteration + per_request * b, so
    request i ends at done_at[i] = done_at[i-1] + (iteration + per_request * (count - i)) * (remaining[i] -
    remaining[i-1]); a piece ends where the class of b changes.
    """
    index = curves.used[0]
    first = curves.used[1]
    curves.used[0] += 1
    curves.used[1] += count
    curves.first[index] = first
    curves.size[index] = count
    for i in range(first + 1, first + count):  # insertion sort: rows are short and often sorted
        left = curves.remaining[i]
        expected, already, request = curves.expected[i], curves.already[i], curves.request[i]
        j = i - 1
        while j >= first and curves.remaining[j] > left:
            curves.remaining[j + 1] = curves.remaining[j]
            curves.expected[j + 1] = curves.expected[j]
            curves.already[j + 1] = curves.already[j]
            curves.request[j + 1] = curves.request[j]
            j -= 1
        curves.remaining[j + 1] = left
        curves.expected[j + 1] = expected
        curves.already[j + 1] = already
        curves.request[j + 1] = request
    time, tokens, pieces, kind = 0.0, 0.0, 0, -1
    for i in range(count):
        active = count - i
        left = curves.remaining[first + i]
        if left > tokens:
            now = decode_class(active, iteration, per_request)
            if now != kind:
                if kind >= 0:
                    curves.end[index, pieces] = time
                    curves.load[index, pieces] = kind
                    pieces += 1
                kind = now
            time += (iteration + per_request * active) * (left - tokens)
            tokens = left
        curves.done_at[first + i] = time
    if kind >= 0:
        curves.end[index, pieces] = time
        curves.load[index, pieces] = kind
        pieces += 1
    curves.pieces[index] = pieces
    return int(index)


@jit
def length(curves: Curves, curve: int) -> float:
    """Return the stand-alone seconds of a whole curve."""
    return float(curves.end[curve, curves.pieces[curve] - 1]) if curves.pieces[curve] > 0 else 0.0


@jit
def finished_requests(curves: Curves, curve: int, elapsed: float) -> int:
    """Return how many requests have ended after `elapsed` stand-alone seconds."""
    first = curves.first[curve]
    low, high = 0, curves.size[curve]
    limit = elapsed + 1e-9
    while low < high:
        middle = (low + high) >> 1
        if curves.done_at[first + middle] <= limit:
            low = middle + 1
        else:
            high = middle
    return low


@jit
def tokens_at(curves: Curves, curve: int, elapsed: float, ended: int, iteration: float, per_request: float) -> float:
    """Return the tokens that each of the unfinished requests has generated on this curve."""
    first = curves.first[curve]
    base = curves.remaining[first + ended - 1] if ended > 0 else 0.0
    since = elapsed - (curves.done_at[first + ended - 1] if ended > 0 else 0.0)
    active = curves.size[curve] - ended
    if active <= 0 or since <= 0.0:
        return float(base)
    return float(min(base + since / (iteration + per_request * active), curves.remaining[first + ended]))


@jit
def refill_seconds(world: World, curves: Curves, pipeline: int, curve: int, elapsed: float) -> float:
    """Return the seconds to prefill again all contexts that are live on a worker."""
    ended = finished_requests(curves, curve, elapsed)
    if curves.size[curve] == ended:
        return 0.0
    tokens = tokens_at(curves, curve, elapsed, ended, world.iteration[pipeline], world.per_request[pipeline])
    first = curves.first[curve]
    total = 0.0
    for i in range(first + ended, first + curves.size[curve]):
        total += world.prompt[pipeline] + curves.already[i] + tokens
    return float(total * world.prefill[pipeline])


@jit
def expected_left(curves: Curves, place: int, tokens: float) -> float:
    """Return the tokens that a request is believed to have left, after `tokens` on its curve.

    One that has outlived its prediction is given a quarter of what it has generated.
    """
    left = curves.expected[place] - tokens
    return float(left) if left > 0.0 else 0.25 * (curves.already[place] + tokens) + 1.0
