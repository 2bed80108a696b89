"""The drafter as an engine adapter uses it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.config import DrafterConfig
from slipstream.core.drafter import DrafterError, HistoryFileError, SuffixDrafter
from slipstream.core.drafter.arrays import LONGEST_DRAFT

TEXT = list(range(100, 160))


def drafter(**settings_: float) -> SuffixDrafter:
    return SuffixDrafter(DrafterConfig(**{"budget_megabytes": 16, "threshold": 0.05, **settings_}))  # type: ignore[arg-type]


def wrote(it: SuffixDrafter, group: str, prompt: list[int], response: list[int], name: str = "earlier") -> None:
    it.start(name, prompt, group)
    it.observe([name], [response])
    it.finish(name)


def test_a_sibling_is_copied_and_acceptance_is_counted() -> None:
    it = drafter()
    wrote(it, "g", [1, 2, 3], TEXT)
    it.start("r", [1, 2, 3], "g")
    emitted, at, steps = TEXT[:1], 1, 0
    while at < len(TEXT):
        (draft,) = it.step(["r"], [emitted])
        expected = TEXT[at : at + draft.size]
        assert draft.tolist()[: len(expected)] == expected
        emitted = TEXT[at : at + draft.size + 1]
        at += len(emitted)
        steps += 1
    it.observe(["r"], [emitted])
    assert steps < 30
    assert it.counters.accepted == len(TEXT) - 1 - steps
    assert it.counters.emitted == 2 * len(TEXT)


def test_drafts_stop_before_the_model_length() -> None:
    """ArcticInference #60: drafts past max_model_len crash the engine; the cap may be zero."""
    it = SuffixDrafter(DrafterConfig(budget_megabytes=16, threshold=0.001), max_model_len=40)
    wrote(it, "g", [1, 2, 3], TEXT)
    it.start("r", [1, 2, 3], "g")
    it.observe(["r"], [TEXT[:30]])
    assert it.propose(["r"])[0].size <= 40 - 33 - 1
    it.observe(["r"], [TEXT[30:36]])
    assert it.propose(["r"])[0].size == 0
    it.observe(["r"], [TEXT[36:37]])  # at the limit
    assert it.propose(["r"])[0].size == 0
    assert it.counters.capped > 0


def test_rows_are_bounded_one_by_one() -> None:
    """vLLM stops drafting for the whole batch when one request comes near the limit."""
    it = SuffixDrafter(DrafterConfig(budget_megabytes=16, threshold=0.001), max_model_len=50)
    wrote(it, "g", [1, 2, 3], TEXT[:40])
    for name, seen in (("near", 40), ("far", 10)):
        it.start(name, [1, 2, 3], "g")
        it.observe([name], [TEXT[:seen]])
    near, far = it.propose(["near", "far"], room=[60, 3])
    assert near.size <= 50 - 43 - 1
    assert 0 < far.size <= 3


@pytest.mark.parametrize("megabytes", [0, 1])
def test_small_budgets_lose_drafts_but_nothing_else(megabytes: int) -> None:
    """SGLang #36495: a trie as small as its depth crashed."""
    it = drafter(budget_megabytes=megabytes)
    random = np.random.default_rng(0)
    for step in range(40):
        names = [f"{step}/{k}" for k in range(3)]
        for name in names:
            it.start(name, random.integers(0, 50, 400), f"g{step}")
        for _ in range(5):
            drafts = it.step(names, [random.integers(0, 50, 90) for _ in names])
            assert all(d.size <= LONGEST_DRAFT for d in drafts)
        for name in names:
            it.finish(name)
    statistics = it.statistics
    assert statistics["history_bytes"] <= megabytes << 20 or statistics["history_tokens"] == 0
    assert statistics["running"] == 0
    assert statistics["evicted_sequences"] > 0 if megabytes else statistics["without_room"] == 120


@pytest.mark.parametrize("length", [1, 2, 8, 9, LONGEST_DRAFT, LONGEST_DRAFT + 1])
def test_prompts_around_the_longest_context_and_draft(length: int) -> None:
    it = drafter()
    it.start("r", [5] * length)
    it.observe(["r"], [[5] * 40])
    (draft,) = it.propose(["r"])
    assert set(draft.tolist()) <= {5}
    assert 0 < draft.size <= LONGEST_DRAFT


def test_long_prompts_of_one_token_stay_within_the_budget() -> None:
    """SGLang #21052: near O(n^2) memory for long prompts."""
    it = drafter(budget_megabytes=4)
    for k in range(6):
        it.start(k, np.full(128_000, 7), f"g{k}")
        it.step([k], [[7, 7]])
        it.finish(k)
        assert it.statistics["history_bytes"] <= 4 << 20
    assert it.statistics["evicted_sequences"] > 0
    assert it.statistics["without_room"] == 0


def test_partial_empty_and_rejected_drafts_in_one_batch() -> None:
    """vLLM #54740, #50021: ragged drafts and zero accepted tokens."""
    it = drafter()
    wrote(it, "g", [1, 2, 3], TEXT)
    for name in "abcd":
        it.start(name, [1, 2, 3], "g" if name != "d" else "other")
        it.observe([name], [TEXT[:3]] if name != "d" else [[9]])
    drafts = it.propose(list("abcd"), room=[1, 64, 64, 64])
    assert drafts[0].size == 1
    assert drafts[1].size > 1
    assert drafts[3].size == 0
    # all accepted; the first token wrong; nothing emitted (a partial prefill); no draft
    after = it.step(list("abcd"), [[*drafts[0].tolist(), TEXT[4]], [77], [], [10]])
    assert len(after) == 4
    assert after[0].tolist()[:3] == TEXT[5:8]
    assert after[2].tolist()[:2] == drafts[2].tolist()[:2]


def test_turns_continue_their_conversation() -> None:
    it = drafter()
    first, answer, tool = list(range(10)), list(range(50, 90)), list(range(200, 230))
    wrote(it, "g", first, answer, "turn 0")
    held = it.statistics["history_tokens"]
    it.start("turn 1", [*first, *answer, *tool], "g")
    assert it.statistics["history_tokens"] == held + len(tool)
    it.observe(["turn 1"], [tool[:6]])
    assert it.propose(["turn 1"])[0].tolist()[:4] == tool[6:10]  # what the tool said is quoted


def test_history_survives_weight_updates() -> None:
    """NeMo-RL #4018 and others: caches of values must go with the weights; proposals need not."""
    it = drafter()
    wrote(it, "g", [1, 2, 3], TEXT)
    it.weights_changed(7)
    it.start("r", [1, 2, 3], "g")
    assert it.step(["r"], [TEXT[:8]])[0].tolist()[:4] == TEXT[8:12]


def test_groups_are_forgotten_and_discarded_text_is_gone() -> None:
    it = drafter()
    wrote(it, "g", [1, 2, 3], TEXT)
    assert it.forget("g")
    assert not it.forget("g")
    it.start("a", [1, 2, 3], "g")
    it.observe(["a"], [TEXT])
    it.finish("a", keep=False)
    it.start("r", [1, 2, 3], "g")
    assert it.step(["r"], [TEXT[:8]])[0].size == 0
    it.finish("r", keep=False)
    assert it.statistics["history_tokens"] == it.statistics["history_groups"] == 0


def test_other_groups_are_copied_where_the_own_one_has_nothing() -> None:
    it = drafter()
    wrote(it, "elsewhere", [1, 2, 3], TEXT)
    it.start("r", [4, 5, 6], "g")
    assert it.step(["r"], [TEXT[:12]])[0].tolist()[:4] == TEXT[12:16]


def test_text_that_was_not_drafted_for_does_not_count_as_a_step() -> None:
    """A request that is taken up again comes with hundreds of tokens at once."""
    it = SuffixDrafter(DrafterConfig(budget_megabytes=16, verify_cost=0.1))
    before = it.threshold(1)
    wrote(it, "g", [1, 2, 3], TEXT * 10)
    assert it.threshold(1) == before
    it.start("r", [1, 2, 3], "g")
    (draft,) = it.step(["r"], [TEXT[:8]])
    it.observe(["r"], [[*draft.tolist(), 1]])
    assert it.threshold(1) != before


def test_saved_history_is_loaded_and_merged(tmp_path) -> None:  # type: ignore[no-untyped-def]
    it = drafter()
    wrote(it, "g", [1, 2, 3], TEXT)
    wrote(it, "h", [4] * 300, list(range(1000, 1500)))
    it.start("still running", [8, 9])
    it.save(tmp_path / "history")
    other = drafter()
    wrote(other, "g", [1, 2, 3], TEXT)
    assert other.load_history(tmp_path / "history", learned=False) == 1  # "g" was known
    assert other.load_history(tmp_path / "history") == 0
    other.start("r", [4] * 300, "h")
    assert other.step(["r"], [list(range(1000, 1230))])[0].tolist()[:5] == list(range(1230, 1235))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "absent", "other format"])
def test_a_damaged_file_changes_nothing(tmp_path, damage: str) -> None:  # type: ignore[no-untyped-def]
    it = drafter()
    wrote(it, "g", [1, 2, 3], TEXT)
    path = tmp_path / "history"
    it.save(path)
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[len(content) // 3] ^= 255
        path.write_bytes(content)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "absent":
        path.unlink()
    else:
        np.savez(path.open("wb"), header=np.frombuffer(b'{"format": 99}', np.uint8))
    before = it.statistics
    with pytest.raises(HistoryFileError, match="expected a history"):
        it.load_history(path)
    assert it.statistics == before


def test_calls_that_make_no_sense_are_refused_and_change_nothing() -> None:
    it = drafter()
    it.start("r", [1, 2])
    before = it.statistics
    with pytest.raises(DrafterError, match="is running"):
        it.start("r", [1])
    with pytest.raises(DrafterError, match="start it first"):
        it.observe(["r", "unknown"], [[1], [2]])
    with pytest.raises(DrafterError, match="named twice"):
        it.observe(["r", "r"], [[1], [2]])
    with pytest.raises(DrafterError, match="leave padding out"):
        it.observe(["r"], [[-1]])
    with pytest.raises(DrafterError, match="flat list"):
        it.start("s", [[1, 2]])
    with pytest.raises(DrafterError, match="got 2 lists"):
        it.observe(["r"], [[1], [2]])
    with pytest.raises(DrafterError, match="start it first"):
        it.finish("s")
    assert it.statistics == before


def test_more_requests_than_rows() -> None:
    it = drafter()
    names = list(range(200))
    for name in names:
        it.start(name, [1, 2, 3], "g")
        it.observe([name], [TEXT[: 1 + name % 7]])
    it.propose(names)
    for name in names:
        it.finish(name)
    assert it.statistics["running"] == 0


def test_threads_share_a_drafter() -> None:
    it = drafter()
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for round_ in range(20):
                it.start(name, [1, 2, 3], f"g{round_ % 3}")
                for at in range(0, len(TEXT), 5):
                    it.step([name], [TEXT[at : at + 5]])
                it.finish(name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"t{k}",)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert it.counters.emitted == 4 * 20 * len(TEXT)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_course_of_requests(data: st.DataObject) -> None:
    """Random text, acceptance, ends and evictions: drafts copy what exists, nothing leaks."""
    it = drafter(budget_megabytes=1, threshold=0.01)
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    alphabet = data.draw(st.sampled_from([1, 2, 5, 1000]))
    live: list[int] = []
    seen: set[int] = set()
    for name in range(data.draw(st.integers(1, 25))):
        prompt = random.integers(0, alphabet, data.draw(st.sampled_from([0, 1, 31, 32, 33, 300])))
        seen |= set(prompt.tolist())
        it.start(name, prompt, f"g{random.integers(4)}")
        live.append(name)
        for _ in range(data.draw(st.integers(0, 4))):
            given_ = [random.integers(0, alphabet, random.choice([0, 1, 2, 70, 500])) for _ in live]
            seen |= {int(t) for tokens in given_ for t in tokens}
            for draft in it.step(live, given_, room=random.integers(0, 70, len(live)).tolist()):
                assert set(draft.tolist()) <= seen
        while live and random.random() < 0.5:
            it.finish(live.pop(int(random.integers(len(live)))), keep=bool(random.integers(2)))
    for name in live:
        it.finish(name, keep=False)
    store = it._history.store
    used = np.flatnonzero(store.block["fill"])
    assert used.size + store.free[0] == store.block.size
    assert np.isin(store.block["owner"][used], np.flatnonzero(store.sequence["first"] >= 0)).all()
    groups = it._history.groups.values()
    assert len(it._history._order) == sum(len(group.idle) for group in groups)
    assert not any(group.live for group in groups)
