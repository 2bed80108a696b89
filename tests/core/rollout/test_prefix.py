"""Prefix index, KV events of real engines, shared prefixes."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.rollout.prefix import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    PrefixIndex,
    SharedPrefixes,
    decode_batch,
)
from slipstream.core.rollout.prefix.blocks import block_keys

B = 4


def index(**options: object) -> PrefixIndex:
    made = PrefixIndex(B, **options)  # type: ignore[arg-type]
    for name in ("a", "b", "c"):
        made.add_replica(name, 40)
    return made


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=30))
def test_equal_keys_mean_equal_prefixes(left, right):
    for ours, theirs, at in zip(block_keys(left, B), block_keys(right, B), range(8), strict=False):
        assert (ours == theirs) == (left[: (at + 1) * B] == right[: (at + 1) * B])


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 1), max_size=24)), max_size=12))
def test_matches_are_those_of_a_list_of_prompts(sent):
    made = PrefixIndex(B)
    for name in "abc":
        made.add_replica(name, 10_000)
    for name, prompt in sent:
        made.insert(name, made.keys(prompt))
    query = [0, 1, 0, 1, 1, 1, 0, 0, 1]
    expected = {}
    for name in "abc":
        longest = 0
        for other, prompt in sent:
            common = next(
                (i for i, (x, y) in enumerate(zip(prompt, query, strict=False)) if x != y), min(len(prompt), 9)
            )
            longest = max(longest, common // B * B) if other == name else longest
        if longest:
            expected[name] = longest
    assert made.matches(made.keys(query)) == expected
    for name in "abc":
        assert made.cached_tokens(name, made.keys(query)) == expected.get(name, 0)


def test_capacity_evicts_ends_before_starts():
    made = index()
    first, second = list(range(24)), list(range(100, 124))
    made.insert("a", made.keys(first))
    made.insert("a", made.keys(second))
    assert made.cached_tokens("a", made.keys(second)) == 24
    assert made.cached_tokens("a", made.keys(first)) == 16, "10 blocks: the first prompt lost its last two"
    assert len(made) == 10


def test_memory_is_bounded_by_the_replicas_capacities():
    made = index()
    chance = random.Random(0)
    for _ in range(500):
        made.insert("a", made.keys([chance.randrange(100) for _ in range(16)]))
    assert len(made) <= 10


@pytest.mark.parametrize(("weights", "left"), [("reset", 0), ("keep", 8), ("version-tag", 0)])
def test_a_weight_update_follows_the_stated_policy(weights, left):
    """[vLLM #46125] Users want to choose: reset, keep, or tag."""
    made = index(weights=weights)
    prompt = list(range(8))
    made.insert("a", made.keys(prompt))
    made.weights_changed(1)
    assert made.cached_tokens("a", made.keys(prompt)) == left
    made.insert("a", made.keys(prompt))
    assert made.cached_tokens("a", made.keys(prompt)) == 8


def test_events_replace_the_model_and_correct_it():
    made = index()
    prompt = list(range(12))
    made.insert("a", made.keys(prompt))
    made.apply("a", BlocksStored((11, 12), None, tuple(prompt[:8]), B))
    assert made.matches(made.keys(prompt)) == {"a": 8}
    made.insert("a", made.keys(prompt))
    assert made.cached_tokens("a", made.keys(prompt)) == 8, "what is sent there is no longer guessed at"
    made.apply("a", BlocksStored((13,), 12, tuple(prompt[8:]), B))
    assert made.cached_tokens("a", made.keys(prompt)) == 12
    made.apply("a", BlocksRemoved((12,)))
    assert made.cached_tokens("a", made.keys(prompt)) == 4
    made.apply("a", BlocksStored((99,), 98, (1, 2, 3, 4), B))  # a parent that was stored before we listened
    made.apply("a", BlocksCleared())
    assert made.matches(made.keys(prompt)) == {}


def test_another_block_size_is_refused():
    with pytest.raises(ValueError, match="blocks of 16 tokens"):
        index().apply("a", BlocksStored((1,), None, tuple(range(16)), 16))


def test_replicas_come_and_go():
    made = index()
    keys = made.keys(list(range(8)))
    made.insert("b", keys)
    made.remove_replica("b")
    assert made.matches(keys) == {}
    made.add_replica("d", 40)
    made.insert("d", keys)
    assert made.matches(keys) == {"d": 8}
    with pytest.raises(ValueError, match="already"):
        made.add_replica("d", 40)


def test_vllms_own_events_decode():
    """Encoded by the real vLLM's classes."""
    events = pytest.importorskip("vllm.distributed.kv_events")
    known = {field.name for field in msgspec.structs.fields(events.BlockStored)}
    stored = {"block_hashes": [7, 8], "parent_block_hash": 6, "token_ids": [1, 2, 3, 4, 5, 6, 7, 8], "block_size": 4}
    stored |= {"lora_id": None, "medium": "GPU"}
    optional = {"lora_name": None, "extra_keys": None}
    batch = events.KVEventBatch(
        ts=1.5,
        events=[
            events.BlockStored(**stored, **{key: value for key, value in optional.items() if key in known}),
            events.BlockRemoved(block_hashes=[7], medium="GPU"),
            events.AllBlocksCleared(),
        ],
    )
    decoded = decode_batch([b"", (5).to_bytes(8, "big"), msgspec.msgpack.encode(batch)])
    assert decoded.sequence == 5
    assert decoded.events == (
        BlocksStored((7, 8), 6, (1, 2, 3, 4, 5, 6, 7, 8), 4),
        BlocksRemoved((7,)),
        BlocksCleared(),
    )


def test_sglangs_events_decode():
    """As documented for SGLang 0.5.23: three more fields at the end; other tiers and adapters are not plain hits."""
    stored = ["BlockStored", [1], None, [5, 6, 7, 8], 4, None, "GPU", "salt", "session", None]
    adapter = ["BlockStored", [2], None, [5, 6, 7, 8], 4, 3, "GPU", None, None, "lora"]
    host = ["BlockRemoved", [1], "CPU"]
    batch = [0.0, [stored, adapter, host, ["SomethingNew", 1], ["AllBlocksCleared"]], 1]
    decoded = decode_batch([b"kv", bytes(8), msgspec.msgpack.encode(batch)])
    assert decoded.dp_rank == 1
    assert [getattr(each, "plain", None) for each in decoded.events] == [True, False, None]


@pytest.mark.parametrize("parts", [[b""], [b"", b"1234567", b""], [b"", bytes(8), b"\xc1"], [b"", bytes(8), b"\x01"]])
def test_what_is_no_batch_is_refused(parts):
    with pytest.raises(ValueError, match=r"expected|not a batch"):
        decode_batch(parts)


def test_shared_prefixes_are_found():
    found = SharedPrefixes(B)
    system, question, other = list(range(8)), [50, 51, 52, 53], [60, 61, 62, 63]
    assert [tokens for _, tokens in found.split("t0", "g0", system + question + [1])] == [13]
    assert [tokens for _, tokens in found.split("t1", "g0", system + question + [2])] == [12, 1]
    split = found.split("t2", "g1", system + other)
    assert [tokens for _, tokens in split] == [8, 4]
    again = found.split("t1", "g0", system + question + [2, 3, 4, 5, 6, 7])
    assert [tokens for _, tokens in again] == [8, 4, 6]
    assert again[0] == split[0]
    assert again[-1].key == ("own", "t1")
