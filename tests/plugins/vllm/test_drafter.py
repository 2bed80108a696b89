"""The suffix drafter in the real vLLM: what is generated stays as it was, in fewer steps."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_qwen2
import torch
from engine_weight_sync import nudge, publish

from slipstream.core.config import SLIPSTREAM_NODE, DrafterConfig, SlipstreamConfig, to_json
from slipstream.core.seams import SeamError
from slipstream.core.weights import Publisher, PublisherSettings
from slipstream.plugins.vllm.drafter import (
    GROUP,
    DrafterUnsupportedError,
    SuffixProposer,
    check_supported,
    proposer_of,
    speculative_config,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

LONGEST, LENGTH = 16, 256
BLOCK_BYTES = 256 << 10  # of the tiny model's KV cache: 128 tokens


class Engine:
    """A `vllm.LLM` in this process, its steps counted."""

    def __init__(self, folder: Path, drafts: bool = True, workers: int = 1, **settings: Any) -> None:
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_CPU_OMP_THREADS_BIND="nobind",
            VLLM_NO_USAGE_STATS="1",
            VLLM_WORKER_MULTIPROC_METHOD="spawn",
        )
        from vllm import LLM

        self.llm = LLM(
            model=str(folder),
            dtype="float32",
            enforce_eager=True,
            tensor_parallel_size=workers,
            distributed_executor_backend="uni" if workers == 1 else "mp",
            worker_extension_cls="vllm_test_extension.TestExtension",
            speculative_config=speculative_config(LONGEST) if drafts else None,
            **{
                "skip_tokenizer_init": True,
                "max_model_len": LENGTH,
                "max_num_seqs": 64,
                "kv_cache_memory_bytes": 64 << 20,
                **settings,
            },
        )
        self.workers = workers
        self.steps = 0
        step = self.llm.llm_engine.step

        def counted() -> Any:
            self.steps += 1
            return step()

        self.llm.llm_engine.step = counted  # type: ignore[method-assign]

    @property
    def proposer(self) -> SuffixProposer:
        (found,) = self.llm.collective_rpc(proposer_of)
        return found

    @property
    def statistics(self) -> dict[str, float]:
        return self.llm.collective_rpc("slipstream_drafter_statistics")[0]

    def generate(self, prompts: Sequence[list[int]], group: str | None = None, **params: Any) -> list[list[int]]:
        from vllm import SamplingParams

        settings = {"temperature": 0.0, "max_tokens": 96, "ignore_eos": True, "detokenize": False, **params}
        sampling = SamplingParams(**settings, extra_args={GROUP: group} if group else None)
        outputs = self.llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def sync(self, endpoint: str) -> None:
        """For `publish`."""
        from slipstream.plugins.vllm.worker_extension import failures

        assert not failures(self.llm.collective_rpc("slipstream_sync", args=([endpoint], 60.0)))

    def stop(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """More are slower for so small a model, and times mean nothing when they wait for each other."""
    before = torch.get_num_threads()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    yield
    del os.environ["OMP_NUM_THREADS"]
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from slipstream.plugins.verl.demo.model import build_tokenizer

    path = tmp_path_factory.mktemp("model")
    tiny_qwen2.save(tiny_qwen2.build(True, seed=3), path, True, torch.float32)
    build_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def plain(folder: Path) -> Engine:
    return Engine(folder, drafts=False, skip_tokenizer_init=False)


@pytest.fixture(scope="module")
def drafting(folder: Path) -> Engine:
    return Engine(folder, skip_tokenizer_init=False)


@pytest.fixture(scope="module")
def tight(folder: Path) -> Engine:
    """Prompts in chunks, and too little memory for what runs: requests are preempted."""
    return Engine(folder, kv_cache_memory_bytes=10 * BLOCK_BYTES, max_num_batched_tokens=80, max_num_seqs=16)


def prompts(count: int, seed: int = 0, longest: int = 40) -> list[list[int]]:
    dice = np.random.default_rng(seed)
    return [dice.integers(3, 290, size=int(dice.integers(4, longest))).tolist() for _ in range(count)]


@pytest.mark.parametrize("batch", [1, 4])
def test_repeated_prompts_take_fewer_steps_and_less_time(plain, drafting, batch, record_property):
    """Two samples of each prompt, three epochs; the batches that a rollout's tail has."""
    times: dict[str, list[float]] = {"plain": [], "drafting": []}
    steps = Counter[str]()
    asked = [prompt for prompt in prompts(max(1, batch // 2), seed=batch) for _ in range(min(2, batch))]
    for _ in range(3):
        answers = []
        for name, engine in (("plain", plain), ("drafting", drafting)):
            engine.steps, start = 0, time.perf_counter()
            answers.append(engine.generate(asked))
            times[name].append(time.perf_counter() - start)
            steps[name] += engine.steps
        assert answers[0] == answers[1]
    record_property("steps", dict(steps))
    record_property("seconds", times)
    assert steps["drafting"] < steps["plain"] / 2
    assert min(times["drafting"]) < min(times["plain"])


def test_forty_requests_of_all_lengths(plain, drafting):
    """ArcticInference #145, #152: crash at concurrency 16 to 36 and above."""
    asked = prompts(20, seed=1, longest=120) * 2
    for _ in range(2):
        assert drafting.generate(asked, max_tokens=60) == plain.generate(asked, max_tokens=60)


def test_a_row_at_the_length_limit_does_not_stop_the_others(plain, drafting):
    """ArcticInference #60; vLLM itself stops drafting for the whole batch."""
    asked = [prompts(1, seed=2)[0], *(list(range(3, 3 + LENGTH - left)) for left in (1, 2, 3, LONGEST + 1))]
    for _ in range(2):
        before = drafting.statistics
        answers = drafting.generate(asked, max_tokens=LENGTH)
    assert answers == plain.generate(asked, max_tokens=LENGTH)
    assert [len(answer) for answer in answers] == [LENGTH - len(asked[0]), 1, 2, 3, LONGEST + 1]
    after = drafting.statistics
    assert after["capped"] > before["capped"]
    assert after["steps"] - before["steps"] < len(answers[0]) / 2


def test_chunked_prompts_preemption_and_cached_prefixes(plain, tight):
    asked = prompts(10, seed=4, longest=120)
    asked += [[*prompt, 7, 8, 9] for prompt in asked[:4]]
    preempted = Counter[str]()
    scheduler = tight.llm.llm_engine.engine_core.engine_core.scheduler
    preempt = scheduler._preempt_request

    def counted(request: Any, *rest: Any, **more: Any) -> Any:
        preempted[request.request_id] += 1
        return preempt(request, *rest, **more)

    scheduler._preempt_request = counted
    for _ in range(2):
        assert tight.generate(asked, max_tokens=120) == plain.generate(asked, max_tokens=120)
    assert preempted
    assert tight.statistics["accepted"] > 0
    assert tight.statistics["restarted"] == 0, "a preempted request goes on where it was"


def test_ragged_rejected_and_empty_drafts_in_one_batch(plain, drafting, monkeypatch):
    """vLLM #54740, #50021, SGLang #17260: whatever is proposed, what comes out is the model's."""
    asked = prompts(12, seed=5)
    expected = plain.generate(asked)
    drafting.generate(asked)  # now the drafts are right
    dice = np.random.default_rng(0)
    lengths = Counter[int]()
    step = drafting.proposer.drafter.step

    def spoiled(ids: Any, emitted: Any, room: Any) -> list[np.ndarray]:
        drafts = []
        for draft in step(ids, emitted, room):
            kind = dice.integers(4)
            if kind == 0:
                draft = draft[:0]
            elif kind == 1:
                draft = draft[: dice.integers(draft.size + 1)]
            elif kind == 2 and draft.size:
                draft = draft.copy()
                draft[dice.integers(draft.size) :] = 11
            lengths[draft.size] += 1
            drafts.append(draft)
        return drafts

    monkeypatch.setattr(drafting.proposer.drafter, "step", spoiled)
    assert drafting.generate(asked) == expected
    assert min(lengths[0], lengths[LONGEST]) > 0
    assert len(lengths) > 4


def test_stop_tokens_end_a_request_and_what_follows_is_not_history(plain, drafting):
    asked = prompts(4, seed=6)
    stop = plain.generate(asked)[0][20]
    for _ in range(3):
        answers = drafting.generate(asked, stop_token_ids=[stop], group="stop")
        assert answers == plain.generate(asked, stop_token_ids=[stop])
    drafting.proposer.settle()
    known = [rest for group, _, rest, _, _ in drafting.proposer.drafter._history.conversations() if group == "stop"]
    assert known
    assert all(stop not in text[:-1].tolist() for text in known)


def test_an_aborted_request_leaves_its_text(drafting):
    from vllm import SamplingParams

    engine, prompt = drafting.llm.llm_engine, prompts(1, seed=7)[0]
    for name in ("kept", "aborted"):
        params = SamplingParams(
            seed=len(name), max_tokens=90, ignore_eos=True, detokenize=False, extra_args={GROUP: "abort"}
        )
        engine.add_request(name, {"prompt_token_ids": prompt}, params)
    for _ in range(6):
        engine.step()
    engine.abort_request(["aborted"])
    while engine.has_unfinished_requests():
        engine.step()
    drafting.generate([[5, 6, 7]], max_tokens=1)  # the runner learns in the next step who has ended
    assert drafting.statistics["running"] <= 1
    lengths = [
        rest.size for group, _, rest, _, _ in drafting.proposer.drafter._history.conversations() if group == "abort"
    ]
    assert len(lengths) == 2
    assert 6 <= min(lengths) < max(lengths) == 90


def test_structured_output(plain, drafting):
    """SGLang #17576: n-gram drafts and a grammar crash."""
    from vllm.sampling_params import StructuredOutputsParams

    grammar = {"structured_outputs": StructuredOutputsParams(regex=r"\[([0-9],){20}[0-9]\]"), "detokenize": True}
    asked = prompts(4, seed=8)
    for _ in range(3):
        before = drafting.statistics
        answers = drafting.generate(asked, ignore_eos=False, **grammar)
        assert answers == plain.generate(asked, ignore_eos=False, **grammar)
    assert {len(answer) for answer in answers} == {44}
    assert drafting.statistics["accepted"] - before["accepted"] > 60


def test_history_is_fed_saved_loaded_and_outlives_weight_updates(plain, drafting, tight, tmp_path):
    asked = prompts(3, seed=9)
    answers = plain.generate(asked)
    rollouts = [(f"g{i}", prompt, answer, 0) for i, (prompt, answer) in enumerate(zip(asked, answers, strict=True))]
    rollouts[1] = ("g1", *(np.array(part, np.int32).tobytes() for part in rollouts[1][1:3]), 0)
    drafting.llm.collective_rpc("slipstream_drafter_feed", args=(rollouts,))
    drafting.llm.collective_rpc("slipstream_drafter_save", args=(str(tmp_path / "history"),))

    def steps(engine: Engine) -> float:
        before = engine.statistics["steps"]
        assert engine.generate(asked) == answers
        return engine.statistics["steps"] - before

    assert drafting.statistics["fed"] == 3
    assert steps(drafting) < 20, "never asked before"
    (new,) = tight.llm.collective_rpc("slipstream_drafter_load", args=(str(tmp_path / "history"),))
    assert new >= 3
    assert steps(tight) < 20
    weights = tiny_qwen2.build(True, seed=3)
    publisher = Publisher(PublisherSettings(timeout=60.0))
    for version, changed in ((1, weights), (2, nudge(weights, 0.5, 1))):
        publish(publisher, tight, changed, str(tmp_path / "socket"))
        assert tight.proposer.drafter._history.version == version
        tight.llm.reset_prefix_cache()
        if version == 1:
            assert steps(tight) < 20, "the same weights under a new version"
    fresh = tiny_qwen2.save(nudge(weights, 0.5, 1), tmp_path / "fresh", True, torch.float32)
    assert tight.generate(asked) == Engine(fresh, drafts=False).generate(asked)
    publish(publisher, tight, weights, str(tmp_path / "socket"))


def test_what_an_engine_without_a_drafter_answers(plain):
    assert plain.llm.collective_rpc("slipstream_drafter_statistics") == [None]
    assert plain.llm.collective_rpc("slipstream_drafter_load", args=("nowhere",)) == [None]
    plain.llm.collective_rpc("slipstream_drafter_feed", args=([("g", [1], [2], 0)],))


def test_a_large_batch_at_temperature_one_costs_what_it_costs_without(plain, drafting, record_property):
    """ArcticInference #185, SGLang #13376. Measured ratio in the properties; the bound leaves room for a busy host."""
    asked = prompts(8, seed=10) * 4
    best = {}
    for _ in range(6):
        for name, engine in (("plain", plain), ("drafting", drafting)):
            start = time.perf_counter()
            engine.generate(asked, temperature=1.0, max_tokens=160)
            best[name] = min(best.get(name, 1e9), time.perf_counter() - start)
    record_property("ratio", best["drafting"] / best["plain"])
    assert best["drafting"] < 1.3 * best["plain"]


def test_a_replica_on_which_drafts_do_not_pay_stops_drafting(drafting, monkeypatch):
    """Steps with drafts made dear: after a few of them the batch decodes plainly, but for rare probes."""
    asked = prompts(8, seed=11) * 2
    drafting.generate(asked)
    load = drafting.proposer.drafter.load
    timed = load.timed

    def dear(batch: int, drafted: int, seconds: float) -> None:
        timed(batch, drafted, 0.01 * (1 + 4 * drafted / batch))

    monkeypatch.setattr(load, "timed", dear)
    monkeypatch.setattr(load, "_loads", {})
    for _ in range(2):
        before = drafting.statistics
        drafting.generate(asked)
    after = drafting.statistics
    assert after["steps_off"] - before["steps_off"] > 0.9 * (after["steps"] - before["steps"])
    assert after["drafting"] == 0.0


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_distribution_is_exact(tmp_path, monkeypatch, record_property, temperature):
    """Chi-square over every outcome of four tokens out of five, drafts forced by a low threshold.

    Spec-RL #14: acceptance without residual sampling changes the distribution. vLLM's own CPU sampler does, at every
    temperature, without `cpu_sampling`.
    """
    from transformers import Qwen2ForCausalLM

    vocab, length, samples = 5, 4, 3200
    weights = tiny_qwen2.build(False, seed=1, vocab=vocab)
    path = tiny_qwen2.save(weights, tmp_path, False, torch.float32)
    model, prompt = Qwen2ForCausalLM.from_pretrained(path, dtype=torch.float32), [1, 3, 0, 2]
    outcomes = list(itertools.product(range(vocab), repeat=length))
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *outcome] for outcome in outcomes])).logits[:, len(prompt) - 1 : -1]
    chosen = torch.tensor(outcomes)[..., None]
    chances = torch.log_softmax(logits.double() / temperature, -1).gather(2, chosen)[..., 0].sum(1).exp()
    expected = samples * chances.numpy()

    config = SlipstreamConfig(drafter=DrafterConfig(mode="suffix", threshold=0.01))
    monkeypatch.setenv(SLIPSTREAM_NODE, to_json(config))
    engine = Engine(path, max_num_seqs=64, max_model_len=128)
    monkeypatch.setattr(engine.proposer.drafter.load, "wants_plain", lambda batch: False)
    monkeypatch.setattr(engine.proposer.drafter.load, "pays", lambda *_: True)
    answers = engine.generate([prompt] * samples, temperature=temperature, max_tokens=length)
    seen = Counter(map(tuple, answers))
    statistics = engine.statistics
    assert statistics["verified"] > samples, "most rows are verified with drafts"
    assert 0.1 < statistics["accepted"] / statistics["verified"] < 0.9
    observed = np.array([seen[outcome] for outcome in outcomes])
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    distance = torch.tensor(((observed - expected) ** 2 / expected).sum())
    p = float(torch.special.gammaincc(torch.tensor((len(expected) - 1) / 2, dtype=torch.float64), distance / 2))
    record_property("p", p)
    assert p > 1e-3


def test_two_workers_verify_alike(plain, folder):
    """Drafts come from one of them."""
    engine = Engine(folder, workers=2, max_num_seqs=8)
    try:
        asked = prompts(4, seed=12)
        for _ in range(2):
            assert engine.generate(asked, max_tokens=48) == plain.generate(asked, max_tokens=48)
        first, second = engine.llm.collective_rpc("slipstream_drafter_statistics")
        assert first["accepted"] > 100
        assert second is None
        engine.generate(asked * 2, temperature=0.5, max_tokens=48)
        first, second = engine.llm.collective_rpc("running_tokens")
        assert first == second
        assert any(first.values())
    finally:
        engine.stop()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"pipeline_parallel_size": 2}, "need pipeline_parallel_size=1, got 2"),
        ({"distributed_executor_backend": "external_launcher", "world_size": 2}, "got .*external_launcher"),
    ],
)
def test_settings_that_vllm_cannot_verify_under_are_refused(setting, message):
    """vllm-ascend #5227, vLLM #52071: drafts across pipeline stages."""
    parallel = {"pipeline_parallel_size": 1, "distributed_executor_backend": "mp", "world_size": 1, **setting}
    with pytest.raises(DrafterUnsupportedError, match=message):
        check_supported(SimpleNamespace(parallel_config=SimpleNamespace(**parallel)))


def test_a_vllm_that_looks_otherwise_is_named(monkeypatch):
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    monkeypatch.setattr(GPUModelRunner, "propose_draft_token_ids", lambda self, batch: None)
    with pytest.raises(SeamError, match=r"(?s)propose_draft_token_ids.*slipstream/drafter=off"):
        SuffixProposer(SimpleNamespace())
