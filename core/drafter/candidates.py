"""The occurrences of a request's context that vote on its next token, kept from token to token.

A candidate is a position in the store whose preceding tokens agree with the end of the request. When the next token is
known (drafted or real), candidates that predicted it move one position on and their match grows by one; only the places
of those that did not are filled again from the index. So a step costs the same at every match depth.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from slipstream.core.drafter.arrays import (
    BLOCK,
    BLOCK_BITS,
    CANDIDATES,
    MARGIN,
    TAG_BITS,
    Rows,
    Store,
)
from slipstream.core.drafter.blocks import after, agreement, is_known
from slipstream.core.drafter.buckets import lowest_bit, slots_of_tag
from slipstream.core.drafter.compiled import inlined
from slipstream.core.drafter.contexts import (
    EVERYWHERE,
    GLOBAL_ORDERS,
    GROUP_ORDERS,
    LONGEST_ORDER,
    hash_contexts,
    place,
)

OWN, SIBLING, EARLIER, ELSEWHERE = 0, 1, 2, 3
"""Scopes: the request's own text and prompt, its group under the same policy, its group before, other groups."""
GROUP_CANDIDATES: Final = 6
"""Candidates that the group's index fills up to; the rest of CANDIDATES is left to the other groups."""
SKIP_BELOW: Final = 13
"""Matches shorter than this are looked at for further agreement behind one edit."""
LONGEST_SKIP: Final = 16
ENOUGH: Final = 20
"""With a match of this length nothing is looked up."""
SHORTER: Final = 4
"""Contexts shorter than this part of the longest match are not looked up."""
LONGEST_WITHIN: Final = 4
"""Longest context that is looked up within a draft, and none beside two candidates with a match of LONGEST_ORDER: what
longer contexts have was mostly found one token before."""
ENOUGH_LONG: Final = 6
"""Candidates that are kept when the first has a match of ENOUGH."""
KEPT_EDITS: Final = 3
"""Candidates that stay after they predicted another token."""


@inlined
def scope_of(store: Store, rows: Rows, row: int, position: int) -> int:
    """Scope of a position as seen by a request; -1 when its block was given back."""
    owner = store.block[position >> BLOCK_BITS].owner
    if owner < 0:
        return -1
    own = rows.request[row].sequence
    if owner == own or owner == rows.request[row].prompt:
        return OWN
    if store.sequence[owner].scope_key != store.sequence[own].scope_key:
        return ELSEWHERE
    return SIBLING if store.sequence[owner].version == store.sequence[own].version else EARLIER


@inlined
def agreement_after_edit(
    token: NDArray[np.int32], position: int, context: NDArray[np.int32], end: int, match: int
) -> int:
    """How many more tokens agree when one is left out in the source, in the context, or in both."""
    p, c = position - match, end - match
    longest = 0
    if p & (BLOCK - 1) and c:
        longest = agreement(token, p - 1, context, c - 1, LONGEST_SKIP)
        longest = max(longest, agreement(token, p - 1, context, c, LONGEST_SKIP))
        longest = max(longest, agreement(token, p, context, c - 1, LONGEST_SKIP))
    return longest


@inlined
def advance(store: Store, rows: Rows, row: int, source: int, target: int, real: int) -> None:
    """Candidates at `target` = those at `source` that predicted token `real`, moved on by one.

    Up to KEPT_EDITS that agreed before but predicted another token stay with match 0: the text may go on as they do
    after an edit of one token.
    """
    kept = edits = 0
    for i in range(rows.prediction[row, source].count):
        old = rows.candidate[row, source, i]
        position, match, skip, scope = old.position, old.match + 1, old.skip, old.scope
        if not is_known(store, position):
            continue
        if store.token[position] != real:
            if match == 1 or edits == KEPT_EDITS:
                continue
            edits += 1
            skip = min(match - 1, LONGEST_SKIP)
            match = 0
        following = after(store, position)
        if following < 0:
            continue
        new = rows.candidate[row, target, kept]
        new.position = following
        new.match = match
        new.skip = skip
        new.scope = scope
        kept += 1
        if kept == ENOUGH_LONG and rows.candidate[row, target, 0].match >= ENOUGH:
            break
    rows.prediction[row, target].count = kept


@inlined
def fill(
    store: Store,
    rows: Rows,
    row: int,
    depth: int,
    context: NDArray[np.int32],
    end: int,
    hashes: NDArray[np.uint64],
) -> None:
    """Fill free places of a request's candidates from the index, longest contexts first, latest positions first.

    for each scope (group, then elsewhere), for n in its context lengths, while places are free:
        for each position indexed under the last n tokens of `context[:end]` that is not there yet: take it
    """
    count = rows.prediction[row, depth].count
    longest = 0
    for i in range(count):
        longest = max(longest, rows.candidate[row, depth, i].match)
    if longest >= ENOUGH:
        return
    least = longest // SHORTER
    available = hash_contexts(context, end, hashes)
    own_key = store.sequence[rows.request[row].sequence].scope_key
    if depth:
        available = min(available, LONGEST_WITHIN) if count < 2 or longest < LONGEST_ORDER else 0
    for order in GROUP_ORDERS:
        if least < order <= available and count < GROUP_CANDIDATES:
            count = _take(store, rows, row, depth, context, end, hashes[order], own_key, order, count, GROUP_CANDIDATES)
    for order in GLOBAL_ORDERS:
        if least < order <= available and count < CANDIDATES:
            count = _take(store, rows, row, depth, context, end, hashes[order], EVERYWHERE, order, count, CANDIDATES)
    rows.prediction[row, depth].count = count


@inlined
def _take(
    store: Store,
    rows: Rows,
    row: int,
    depth: int,
    context: NDArray[np.int32],
    end: int,
    context_hash: np.uint64,
    scope_key: np.uint64,
    order: int,
    count: int,
    most: int,
) -> int:
    bucket, tag = place(store.counts[0], context_hash, scope_key, order)
    found = slots_of_tag(store.slots, bucket, tag)
    while found:
        position = int(store.slots[bucket, lowest_bit(found)]) >> TAG_BITS
        found &= found - 1
        repeated = False
        for j in range(count):
            repeated |= rows.candidate[row, depth, j].position == position
        if repeated or not is_known(store, position):
            continue
        scope = scope_of(store, rows, row, position)
        if scope < 0 or (scope == ELSEWHERE) != (scope_key == EVERYWHERE):
            continue
        match = agreement(store.token, position, context, end, MARGIN)
        if match < order:
            continue
        skip = 0
        if match < SKIP_BELOW:
            skip = agreement_after_edit(store.token, position, context, end, match)
        new = rows.candidate[row, depth, count]
        new.position = position
        new.match = match
        new.skip = skip
        new.scope = scope
        count += 1
        if count == most:
            break
    return count
