"""The suffix index against a reference twin and a brute-force search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_index import ReferenceTable, occurrences

from slipstream.core.drafter.arrays import BLOCK, FILLER, MARGIN, TAG_BITS, Store, new_store
from slipstream.core.drafter.blocks import append, common_prefix, open_sequence, read, reindex, release
from slipstream.core.drafter.contexts import GLOBAL_ORDERS, GROUP_ORDERS, KEEP, LONGEST_ORDER, hash_contexts, place
from slipstream.triton_kernels.jit import jit

GROUP = np.uint64(12345)
NOTHING_BEFORE = np.full(MARGIN, FILLER, np.int32)


@jit
def places(bits: int, text: np.ndarray, end: int, key: np.uint64, order: int) -> tuple[int, int]:
    """Bucket and tag of the `order` tokens before `end`."""
    hashes = np.empty(LONGEST_ORDER + 1, np.uint64)
    hash_contexts(text, end, hashes)
    return place(bits, hashes[order], key, order)


def filled(texts: list[np.ndarray], bits: int = 12) -> Store:
    store = new_store(sum(t.size // (BLOCK - MARGIN) + 2 for t in texts) + 1, len(texts) + 1, bits)
    for sequence, text in enumerate(texts):
        store.sequence["scope_key"][sequence] = GROUP
        assert open_sequence(store, sequence, NOTHING_BEFORE)
        assert append(store, sequence, text, True) == text.size
    return store


def position_of(store: Store, sequence: int, at: int) -> int:
    """Where token `at` of a sequence stands."""
    block = int(store.sequence["first"][sequence])
    for _ in range(at // (BLOCK - MARGIN)):
        block = int(store.block["following"][block])
    return block * BLOCK + MARGIN + at % (BLOCK - MARGIN)


def indexed(store: Store, context: np.ndarray, key: np.uint64) -> list[int]:
    """Positions in the table for a context, latest first."""
    padded = np.concatenate([NOTHING_BEFORE, context]).astype(np.int32)
    bucket, tag = places(int(store.counts[0]), padded, padded.size, key, context.size)
    return [int(s) >> TAG_BITS for s in store.slots[bucket] if s and int(s) & ((1 << TAG_BITS) - 1) == tag]


texts_of_few_tokens = st.lists(
    st.lists(st.integers(0, 3), min_size=0, max_size=400).map(lambda t: np.array(t, np.int32)), min_size=1, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(texts_of_few_tokens)
def test_table_equals_its_twin_and_finds_the_latest_occurrences(texts: list[np.ndarray]) -> None:
    store = filled(texts)
    twin = ReferenceTable()
    bits = int(store.counts[0])
    for sequence, text in enumerate(texts):
        padded = np.concatenate([NOTHING_BEFORE, text])
        for at in range(text.size):
            for key, orders in ((GROUP, GROUP_ORDERS), (np.uint64(0), GLOBAL_ORDERS)):
                for order in orders:
                    if order <= at:
                        bucket, tag = places(bits, padded, MARGIN + at, key, order)
                        twin.insert(bucket, tag, position_of(store, sequence, at))
    for bucket, slots in twin.buckets.items():
        found = [(int(s) & ((1 << TAG_BITS) - 1), int(s) >> TAG_BITS) for s in store.slots[bucket] if s]
        assert found == slots
    assert store.counts[1] == sum(map(len, twin.buckets.values()))
    assert store.counts[2] == twin.displaced

    # soundness and completeness against brute force, for contexts that share their bucket and tag with no other
    text = texts[0]
    owners: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for each in texts:
        padded = np.concatenate([NOTHING_BEFORE, each])
        for at in range(1, each.size):
            for order in GROUP_ORDERS:
                if order <= at:
                    where = places(bits, padded, MARGIN + at, GROUP, order)
                    owners.setdefault(where, set()).add(tuple(each[at - order : at]))
    for at in range(1, min(text.size, 60)):
        for order in GROUP_ORDERS:
            if order <= at:
                context = text[at - order : at]
                padded = np.concatenate([NOTHING_BEFORE, context])
                if len(owners[places(bits, padded, padded.size, GROUP, order)]) == 1 and not twin.displaced:
                    expected = [position_of(store, s, i) for s, i in occurrences(texts, context)][::-1][:KEEP]
                    assert indexed(store, context, GROUP) == expected


@pytest.mark.parametrize("length", [0, 1, BLOCK - MARGIN - 1, BLOCK - MARGIN, BLOCK - MARGIN + 1, 5 * BLOCK])
def test_sequences_are_read_back_across_blocks(length: int) -> None:
    text = np.arange(length, dtype=np.int32)
    store = filled([text])
    tokens, everywhere = np.empty(length, np.int32), np.empty(length, np.bool_)
    read(store, 0, tokens, everywhere)
    assert np.array_equal(tokens, text)
    assert everywhere.all()
    assert common_prefix(store, 0, np.append(text, 7).astype(np.int32), 0) == length


def test_releasing_gives_every_block_back() -> None:
    store = filled([np.arange(3000, dtype=np.int32), np.arange(50, dtype=np.int32)])
    free = int(store.free[0])
    assert release(store, 0) == 3000 // (BLOCK - MARGIN) + 1
    assert store.free[0] == free + 3000 // (BLOCK - MARGIN) + 1
    assert sorted(store.free[1 : store.free[0] + 1]) == sorted(set(store.free[1 : store.free[0] + 1]))


def test_a_full_store_takes_what_fits_and_says_so() -> None:
    store = new_store(2, 2, 8)
    open_sequence(store, 0, NOTHING_BEFORE)
    assert append(store, 0, np.zeros(10_000, np.int32), True) == 2 * (BLOCK - MARGIN)
    assert not open_sequence(store, 1, NOTHING_BEFORE)


def test_reindexing_gives_the_table_that_appending_gave() -> None:
    random = np.random.default_rng(0)
    store = filled([random.integers(0, 9, 700).astype(np.int32) for _ in range(3)])
    slots, counts = np.zeros_like(store.slots), np.array([store.counts[0], 0, 0])
    reindex(store, np.array([0, 1, 2], np.int32), slots, counts)
    assert np.array_equal(slots, store.slots)
    assert np.array_equal(counts, store.counts)
