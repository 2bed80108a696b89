"""The demo's task, reward and tokenizer."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from slipstream.plugins.verl.demo import task
from slipstream.plugins.verl.demo.reward import compute_score


def test_problems_are_reproducible_distinct_and_solved() -> None:
    items = task.problems(100, seed=3)
    assert items == task.problems(100, seed=3)
    assert items != task.problems(100, seed=4)
    assert len({item.number for item in items}) == 100
    assert all(item.solution == "".join(sorted(item.number)) for item in items)


def test_each_style_gives_another_answer_and_only_one_is_rewarded() -> None:
    for item in task.problems(50, seed=0):
        answers = {style: task.answer(item.number, style) for style in task.STYLES}
        assert len(set(answers.values())) == len(answers)
        rewards = {style: compute_score(task.DATA_SOURCE, text, item.solution) for style, text in answers.items()}
        assert rewards == {style: float(style == "ascending") for style in task.STYLES}


def test_reward_ignores_surrounding_space_only() -> None:
    assert task.score(" 1234\n", "1234") == 1.0
    assert task.score("12345", "1234") == 0.0
    assert task.score("", "1234") == 0.0


def test_unknown_style_is_named() -> None:
    with pytest.raises(ValueError, match="'sideways'"):
        task.answer("12", "sideways")


def test_pretraining_mixes_the_styles_as_stated() -> None:
    counts: Counter[str] = Counter()
    for number, text in islice(task.pretraining_pairs(seed=1), 4000):
        counts[next(style for style in task.STYLES if task.answer(number, style) == text)] += 1
    for style, share in task.STYLES.items():
        assert counts[style] / 4000 == pytest.approx(share, abs=0.04)


def test_parquet_has_what_verl_reads(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    items = task.problems(7, seed=1)
    table = parquet.read_table(task.write_parquet(items, tmp_path / "data" / "train.parquet"))
    row = table.to_pylist()[3]
    assert row["prompt"] == [{"role": "user", "content": items[3].number}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": items[3].solution}
    assert row["extra_info"] == {"index": 3}


def test_tokenizer_round_trip_and_template() -> None:
    pytest.importorskip("transformers")
    from slipstream.plugins.verl.demo.model import build_tokenizer

    tokenizer = build_tokenizer()
    for text in ("40917", "a b\n\t", "naïve ∑ 漢"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert len(ids) == len(text.encode())
        assert tokenizer.decode(ids) == text
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "4091"}], add_generation_prompt=True, tokenize=False
    )
    assert prompt == "<|im_start|>u4091<|im_end|>\n<|im_start|>a"
    assert tokenizer.decode(tokenizer(prompt + "0149<|im_end|>")["input_ids"], skip_special_tokens=True).endswith(
        "a0149"
    )
    assert tokenizer.eos_token == "<|im_end|>"


def test_model_cache_key_follows_the_spec() -> None:
    from slipstream.plugins.verl.demo.model import ModelSpec

    assert ModelSpec().key() == ModelSpec().key()
    assert ModelSpec().key() != ModelSpec(seed=1).key()


def test_model_is_built_once(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from slipstream.plugins.verl.demo.model import ModelSpec, cached_model

    seen: list[tuple[int, int]] = []
    spec = ModelSpec(hidden_size=64, intermediate_size=96, layers=1, heads=1, kv_heads=1, steps=2, batch=4)
    folder = cached_model(spec, tmp_path, lambda done, total, loss: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    assert cached_model(spec, tmp_path, lambda done, total, loss: pytest.fail("trained twice")) == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert str(model.dtype) == "torch.bfloat16"
    assert model.config.tie_word_embeddings
