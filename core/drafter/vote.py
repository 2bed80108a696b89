"""Which token comes next, how likely, and what the real token teaches.

Candidates vote with weights that are products of learned factors (scope x match length, match length x agreement
behind an edit, scope x rank by recency, how common the token is, and which token follows which one, which two, and
which one but last); the escape weight stands for "none of them". The share of the leading token becomes a probability
by learned logit offsets: of the longest match, the number of supporters and the share itself, and of the tokens
involved, since which kinds of token are predictable (keys of a JSON object against its values) is stable over tasks.
Every emitted token teaches exactly one stored prediction.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slipstream.core.drafter.arrays import Learned, Rows, Store
from slipstream.core.drafter.blocks import is_known
from slipstream.core.drafter.compiled import inlined

LENGTH_BUCKETS: Final = 12
SKIP_BUCKETS: Final = 4
SCOPES: Final = 4
RANKS: Final = 3
SUPPORTS: Final = 4
SHARE_BINS: Final = 24
OFFSET_TABLES: Final = 4
TOKEN_ENTRIES: Final = 1 << 16
"""Entries of a table for particular tokens; they are hashed."""

LONG: Final = 3
"""Matches from this length on are alike to the factors of a token, of a pair, and of one but last."""

SKIPPED: Final = 100
"""Tells the entries of a token after the one but last from those of three tokens."""

VOTE_RATE: Final = 0.05
TOKEN_RATE: Final = 0.2
"""Larger than VOTE_RATE: an entry for particular tokens is taught rarely."""
VOTE_LIMIT: Final = 3000.0
OFFSET_RATE: Final = 0.35
SHARE_LIMIT: Final = 0.9
SHARE_SLOPE: Final = 0.8
"""Shares are too sure of themselves: they start lower and are believed less than in full."""

SKIP_BASE: Final = SCOPES * LENGTH_BUCKETS
RANK_BASE: Final = SKIP_BASE + LENGTH_BUCKETS * SKIP_BUCKETS
ESCAPE_BASE: Final = RANK_BASE + SCOPES * RANKS
PAIR_BASE: Final = ESCAPE_BASE + LENGTH_BUCKETS
TRIPLE_BASE: Final = PAIR_BASE + TOKEN_ENTRIES
CELL_BASE: Final = OFFSET_TABLES * TOKEN_ENTRIES


def new_learned() -> Learned:
    """The state before anything was observed."""
    vote = np.ones(TRIPLE_BASE + TOKEN_ENTRIES, np.float64)
    vote[:SKIP_BASE] = np.exp(np.tile(np.linspace(-2, 3, LENGTH_BUCKETS), SCOPES))
    vote[SKIP_BASE:RANK_BASE] = np.exp(np.tile([0.0, 0.3, 0.8, 1.2], LENGTH_BUCKETS))
    vote[RANK_BASE:ESCAPE_BASE] = np.exp(np.tile([0.3, 0.0, -0.3], SCOPES))
    return Learned(
        vote.astype(np.float32),
        np.zeros((CELL_BASE + LENGTH_BUCKETS * SUPPORTS * SHARE_BINS, 2), np.float32),
    )


@inlined
def length_bucket(match: int) -> int:
    """0, 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-24, 25-31, 32 and more."""
    if match <= 4:
        return match
    if match <= 8:
        return 5 + (match - 5) // 2
    if match <= 16:
        return 7 + (match - 9) // 4
    return 9 if match <= 24 else 10 if match < 32 else 11


@inlined
def skip_bucket(skip: int) -> int:
    """0, 1-2, 3-6, 7 and more."""
    return 0 if skip == 0 else 1 if skip <= 2 else 2 if skip <= 6 else 3


@inlined
def token_entry(a: int, b: int, c: int) -> int:
    """Entry for up to three tokens in a table of TOKEN_ENTRIES."""
    h = np.uint64(a + 2) * np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(31)) ^ np.uint64(b + 2)) * np.uint64(0xD6E8FEB86659FD93)
    h = (h ^ (h >> np.uint64(31)) ^ np.uint64(c + 2)) * np.uint64(0x9E3779B97F4A7C15)
    return int(h >> np.uint64(48))


@inlined
def predict(
    store: Store,
    rows: Rows,
    learned: Learned,
    row: int,
    depth: int,
    last: int,
    before_last: int,
    values: NDArray[np.int32],
    totals: NDArray[np.float32],
) -> float:
    """Choose the leading token at a draft position and return its calibrated probability, 0 without candidates.

    weight of a candidate = product of its factors; share of a token = its weights / (all weights + escape)
    logit(p) = 0.8 logit(share) + the offsets of (longest match, supporters, share), (top, longest match), (last),
               (last, top) and (last two)

    :param values: int32[CANDIDATES], scratch; `totals`: float32[CANDIDATES], scratch.
    """
    prediction = rows.prediction[row, depth]
    kinds = 0
    longest = 0
    total = np.float32(0)
    ranks = 0  # a byte a scope
    hashed_token = hashed_short = hashed_scope = by_pair = by_triple = by_token = by_skipped = -1
    for i in range(prediction.count):
        candidate = rows.candidate[row, depth, i]
        position = candidate.position
        if not is_known(store, position):
            candidate.token = -1
            continue
        token = store.token[position]
        scope = int(candidate.scope)
        match = candidate.match
        longest = max(longest, match)
        length = length_bucket(match)
        rank: int = min((ranks >> (8 * scope)) & 255, RANKS - 1)
        ranks += 1 << (8 * scope)
        by_length = scope * LENGTH_BUCKETS + length
        by_skip = SKIP_BASE + length * SKIP_BUCKETS + skip_bucket(candidate.skip)
        by_rank = RANK_BASE + scope * RANKS + rank
        short = min(match, LONG)
        if token != hashed_token or short != hashed_short or scope != hashed_scope:  # mostly it is the one before
            hashed_token, hashed_short, hashed_scope = token, short, scope
            by_pair = PAIR_BASE + token_entry(last, token, short)
            by_triple = TRIPLE_BASE + token_entry(before_last, last * SCOPES + scope, token)
            by_token = PAIR_BASE + token_entry(-2, token, short)
            by_skipped = TRIPLE_BASE + token_entry(before_last, token, SKIPPED + short)
        weight = (
            learned.vote[by_length]
            * learned.vote[by_skip]
            * learned.vote[by_rank]
            * learned.vote[by_pair]
            * learned.vote[by_triple]
            * learned.vote[by_token]
            * learned.vote[by_skipped]
        )
        candidate.by_length = by_length
        candidate.by_skip = by_skip
        candidate.by_rank = by_rank
        candidate.by_pair = by_pair
        candidate.by_triple = by_triple
        candidate.by_token = by_token
        candidate.by_skipped = by_skipped
        candidate.token = token
        candidate.weight = weight
        total += weight
        kind = 0
        while kind < kinds and values[kind] != token:
            kind += 1
        if kind == kinds:
            values[kind] = token
            totals[kind] = weight
            kinds += 1
        else:
            totals[kind] += weight
    if kinds == 0:
        prediction.top = -1
        prediction.probability = 0
        return 0.0
    best = 0
    for kind in range(1, kinds):
        if totals[kind] > totals[best]:
            best = kind
    top = values[best]
    support = -1
    for i in range(prediction.count):
        support += rows.candidate[row, depth, i].token == top
    length = length_bucket(longest)
    escape = learned.vote[ESCAPE_BASE + length]
    share = totals[best] / (total + escape)
    share_bin = int(2 * math.log(share / (1 - share)) + SHARE_BINS / 2)
    cell = (length * SUPPORTS + min(support, SUPPORTS - 1)) * SHARE_BINS + max(0, min(SHARE_BINS - 1, share_bin))
    cell += CELL_BASE
    p = min(share, SHARE_LIMIT)
    prediction.top = top
    prediction.escape = escape
    prediction.longest = length
    prediction.cell = cell
    prediction.of_top = token_entry(top, length, -1)
    prediction.of_last = TOKEN_ENTRIES + token_entry(last, -1, -1)
    prediction.of_pair = 2 * TOKEN_ENTRIES + token_entry(last, top, min(support, SUPPORTS - 1))
    prediction.of_last_two = 3 * TOKEN_ENTRIES + token_entry(last, before_last, -1)
    logit = (
        SHARE_SLOPE * math.log(p / (1 - p))
        + learned.offset[cell, 0]
        + learned.offset[prediction.of_top, 0]
        + learned.offset[prediction.of_last, 0]
        + learned.offset[prediction.of_pair, 0]
        + learned.offset[prediction.of_last_two, 0]
    )
    probability = 1 / (1 + math.exp(-logit))
    prediction.probability = probability
    return probability


@inlined
def learn(rows: Rows, learned: Learned, row: int, depth: int, real: int) -> None:
    """Teach the prediction at a draft position that token `real` came.

    vote: one step of gradient on log P(real), in the logarithm of each factor
    offsets: each moves by rate / sqrt(1 + tries / 4) times the error
    """
    prediction = rows.prediction[row, depth]
    if prediction.top < 0:
        return
    all_weight = prediction.escape
    right_weight = np.float32(0)
    for i in range(prediction.count):
        candidate = rows.candidate[row, depth, i]
        if candidate.token >= 0:
            all_weight += candidate.weight
            if candidate.token == real:
                right_weight += candidate.weight
    for i in range(prediction.count):
        candidate = rows.candidate[row, depth, i]
        if candidate.token < 0:
            continue
        gradient = -candidate.weight / all_weight
        if candidate.token == real:
            gradient += candidate.weight / right_weight
        _scale(learned.vote, candidate.by_length, VOTE_RATE * gradient)
        _scale(learned.vote, candidate.by_skip, VOTE_RATE * gradient)
        _scale(learned.vote, candidate.by_rank, VOTE_RATE * gradient)
        _scale(learned.vote, candidate.by_pair, TOKEN_RATE * gradient)
        _scale(learned.vote, candidate.by_triple, TOKEN_RATE * gradient)
        _scale(learned.vote, candidate.by_token, TOKEN_RATE * gradient)
        _scale(learned.vote, candidate.by_skipped, TOKEN_RATE * gradient)
    cell = prediction.cell
    escape_gradient = -prediction.escape / all_weight
    if right_weight == 0:
        escape_gradient += 1
    _scale(learned.vote, ESCAPE_BASE + prediction.longest, VOTE_RATE * escape_gradient)

    error = (1 if prediction.top == real else 0) - prediction.probability
    _shift(learned.offset, cell, error)
    _shift(learned.offset, prediction.of_top, error)
    _shift(learned.offset, prediction.of_last, error)
    _shift(learned.offset, prediction.of_pair, error)
    _shift(learned.offset, prediction.of_last_two, error)


@inlined
def _shift(offset: NDArray[np.float32], entry: int, error: float) -> None:
    tries = offset[entry, 1]
    offset[entry, 0] += OFFSET_RATE / math.sqrt(1 + tries / 4) * error
    offset[entry, 1] = tries + 1


@inlined
def _scale(vote: NDArray[np.float32], entry: int, step: float) -> None:
    scaled = vote[entry] * (1 + step + step * step / 2)
    vote[entry] = max(1 / VOTE_LIMIT, min(VOTE_LIMIT, scaled))
