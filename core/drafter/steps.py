"""One step of a batch: take in what was emitted, then draft. Compiled, without the GIL."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.core.drafter.arrays import BLOCK, CANDIDATES, LONGEST_DRAFT, MARGIN, Learned, Rows, Store
from slipstream.core.drafter.blocks import extend
from slipstream.core.drafter.candidates import advance, fill
from slipstream.core.drafter.compiled import jit
from slipstream.core.drafter.contexts import LONGEST_ORDER
from slipstream.core.drafter.vote import learn, predict


@jit
def take_in(
    store: Store,
    rows: Rows,
    learned: Learned,
    batch: NDArray[np.int32],
    emitted: NDArray[np.int32],
    ends: NDArray[np.int64],
) -> int:
    """Learn from what each row of `batch` emitted, and append it to its sequence.

    for each row: for each emitted token, while the draft agrees: learn the prediction at its position
                  the candidates there, moved on by the last token, are the next draft's first ones
    Returns the number of rows taken in completely; less than the batch when the store is full.
    """
    hashes = np.empty(LONGEST_ORDER + 1, np.uint64)
    start = 0
    for b in range(batch.size):
        row, stop = batch[b], ends[b]
        if stop > start:
            at = -1
            agrees = rows.request[row].drafted >= 0
            for k in range(start, stop):
                if not agrees:
                    at = -1
                    break
                at = k - start
                learn(rows, learned, row, at, emitted[k])
                agrees = at < rows.request[row].drafted and rows.prediction[row, at].top == emitted[k]
            if at >= 0:
                advance(store, rows, row, at, 0, emitted[stop - 1])
            else:
                rows.prediction[row, 0].count = 0
            rows.request[row].drafted = -1
            if extend(store, rows.request[row].sequence, emitted, start, stop, True, hashes) < stop - start:
                return b
        start = stop
    return batch.size


@jit
def draft(
    store: Store,
    rows: Rows,
    learned: Learned,
    batch: NDArray[np.int32],
    most: NDArray[np.int32],
    threshold: NDArray[np.float32],
    drafts: NDArray[np.int32],
    lengths: NDArray[np.int32],
    expected: NDArray[np.float32],
) -> None:
    """Draft for each row of `batch`, at most `most[b]` tokens.

    while the probability that everything so far and the next token are accepted is at least threshold[b]:
        draft the next token, and add that probability to expected[b]
    Writes drafts[b, :lengths[b]], and to expected[b] how many of them will be accepted on average.
    """
    context = np.empty(MARGIN + LONGEST_DRAFT + 1, np.int32)
    hashes = np.empty(LONGEST_ORDER + 1, np.uint64)
    values, totals = np.empty(CANDIDATES, np.int32), np.empty(CANDIDATES, np.float32)
    for b in range(batch.size):
        row = batch[b]
        lengths[b] = 0
        expected[b] = 0
        if most[b] <= 0:
            continue
        block = store.sequence[rows.request[row].sequence].last
        stop = block * BLOCK + store.block[block].fill
        for i in range(MARGIN):
            context[i] = store.token[stop - MARGIN + i]
        limit = min(most[b], LONGEST_DRAFT)
        path = 1.0
        accepted = 0.0
        depth = 0
        while True:
            end = MARGIN + depth
            fill(store, rows, row, depth, context, end, hashes)
            path *= predict(store, rows, learned, row, depth, context[end - 1], context[end - 2], values, totals)
            if path < threshold[b] or depth == limit or path == 0:
                break
            top = rows.prediction[row, depth].top
            drafts[b, depth] = top
            context[end] = top
            depth += 1
            accepted += path
            advance(store, rows, row, depth - 1, depth, top)
        rows.request[row].drafted = depth
        lengths[b] = depth
        expected[b] = accepted
