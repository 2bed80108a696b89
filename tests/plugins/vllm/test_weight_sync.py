"""The engine suite on the real vLLM: tied and untied heads, bf16 and fp32, one and two tensor-parallel workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_qwen2
import tiny_qwen3_moe
import torch
from engine_weight_sync import EngineWeightSync, Weights, nudge, publish

from slipstream.core.weights.chain import ChainWriter

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROMPTS = [[5, 9, 17, 33, 2], list(range(40, 70))]


def start(folder: Path, dtype: str, tensor_parallel: int, load_format: str):
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_NO_USAGE_STATS="1",
        VLLM_WORKER_MULTIPROC_METHOD="spawn",
    )
    from vllm import LLM

    return LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype=dtype,
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=8,
        load_format=load_format,
        kv_cache_memory_bytes=64 << 20,
        tensor_parallel_size=tensor_parallel,
        distributed_executor_backend="uni" if tensor_parallel == 1 else "mp",
        worker_extension_cls="vllm_test_extension.TestExtension",
    )


def stop(llm) -> None:
    """End the engine's workers: dropping the last reference leaves them, and their memory, behind."""
    llm.llm_engine.engine_core.shutdown()


class VllmRollout:
    """A `RolloutEngine` over `vllm.LLM`."""

    def __init__(self, folder: Path, tied: bool, dtype: str, workers: int, model: Any = tiny_qwen2) -> None:
        self._folder, self._tied, self._dtype, self.workers, self._model = folder, tied, dtype, workers, model
        checkpoint = model.save(model.build(tied, seed=99), folder / "start", tied, torch.bfloat16)
        self._llm = start(checkpoint, dtype, workers, "dummy")
        self._fresh = 0

    def sync(self, endpoint: str) -> None:
        from slipstream.plugins.vllm.worker_extension import failures

        outcomes = self._llm.collective_rpc("slipstream_sync", kwargs={"endpoints": [endpoint], "timeout": 60.0})
        if failed := failures(outcomes):
            raise RuntimeError("; ".join(failed))

    def follow(self, url: str) -> list[tuple[int | None, str]]:
        """Bring every worker to the newest version of a chain."""
        return self._llm.collective_rpc("slipstream_follow", kwargs={"url": url})

    def checksums(self) -> list[dict[str, str]]:
        return self._llm.collective_rpc("slipstream_checksums")

    def fresh_engine(self, weights: Weights) -> tuple[list[dict[str, str]], list[list[int]]]:
        self._fresh += 1
        folder = self._folder / f"fresh{self._fresh}"
        self._model.save(weights, folder, self._tied, getattr(torch, self._dtype))
        llm = start(folder, self._dtype, self.workers, "auto")
        try:
            return llm.collective_rpc("slipstream_checksums"), greedy(llm)
        finally:
            if self.workers > 1:  # a worker in this process would take the first engine's process groups with it
                stop(llm)

    def lose_weights(self) -> None:
        self._llm.collective_rpc("lose_weights")

    def sleep(self, level: int) -> None:
        self._llm.collective_rpc("sleep", kwargs={"level": level})

    def wake_up(self, tags: list[str]) -> None:
        self._llm.collective_rpc("wake_up", kwargs={"tags": tags})

    def break_loader(self) -> Callable[[], None]:
        self._llm.collective_rpc("break_writes", args=(True,))
        return lambda: self._llm.collective_rpc("break_writes", args=(False,))

    def generate(self) -> list[list[int]]:
        self._llm.reset_prefix_cache()
        return greedy(self._llm)


def greedy(llm) -> list[list[int]]:
    """Tokens for the fixed prompts."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": p} for p in PROMPTS], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


class VllmSuite(EngineWeightSync):
    """Parameters of one engine; subclasses are collected."""

    tied, dtype, workers = True, "bfloat16", 1
    model: Any = tiny_qwen2

    @pytest.fixture(scope="class")
    def engine(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmRollout]:
        rollout = VllmRollout(tmp_path_factory.mktemp("vllm"), self.tied, self.dtype, self.workers, self.model)
        yield rollout
        stop(rollout._llm)

    @pytest.fixture
    def weights(self) -> Weights:
        return self.model.build(self.tied)

    def test_an_engine_that_follows_a_chain(self, engine, weights, publisher, socket, tmp_path):
        """Deltas from files, then a trainer that is back: each way of writing makes the other start anew."""
        chain = ChainWriter(str(tmp_path), dtype=getattr(torch, self.dtype))
        moved = weights
        for step in range(3):
            moved = nudge(moved, 0.02, step)
            chain.publish(moved.items())
            assert engine.follow(str(tmp_path)) == [(step + 1, "")] * engine.workers
        assert engine.checksums() == engine.fresh_engine(moved)[0]
        assert publish(publisher, engine, weights, socket).seeded_workers == engine.workers
        assert engine.follow(str(tmp_path)) == [(3, "")] * engine.workers
        assert engine.checksums() == engine.fresh_engine(moved)[0]


class TestTiedBf16(VllmSuite):
    """The common case."""

    @pytest.mark.parametrize(("level", "seeded"), [(1, 0), (2, 1)])
    def test_sleep(self, engine, weights, publisher, socket, level, seeded):
        """TRL #5312: level 1 keeps the weights and the deltas go on, level 2 takes them and the next sync seeds.

        vLLM's CPU backend frees nothing when it sleeps; the calls, the workers and what they note are the real ones.
        """
        publish(publisher, engine, weights, socket)
        engine.sleep(level)
        acked = publisher.acked
        with pytest.raises(Exception, match=r"sleeps, so its weights have no memory.*wake_up"):
            publish(publisher, engine, nudge(weights, 0.01, 5), socket)
        assert publisher.acked == acked
        engine.wake_up(["kv_cache"])
        with pytest.raises(Exception, match="sleeps"):
            publish(publisher, engine, nudge(weights, 0.01, 5), socket)
        engine.wake_up(["weights"])
        report = publish(publisher, engine, nudge(weights, 0.01, 5), socket)
        assert report.seeded_workers == seeded
        assert report.audited_tensors > 0


class TestUntiedFp32(VllmSuite):
    """A separate output head, and a dtype in which nearly every bit pattern is its own."""

    tied, dtype = False, "float32"


class TestTwoTensorParallelWorkers(VllmSuite):
    """Each worker holds its shards; both commit or neither."""

    workers = 2


class TestExperts(VllmSuite):
    """A mixture of experts: w13 and w2 of each layer hold all experts, written in place."""

    tied, model = False, tiny_qwen3_moe
    fused = "model.layers.1.mlp.experts.4.up_proj.weight"

    def test_every_expert_is_written_in_place(self, engine, weights, publisher, socket):
        """Not one tensor through the loader, and a change of one expert is not a change of another."""
        publish(publisher, engine, weights, socket)
        moved = {name: weight.clone() for name, weight in weights.items()}
        moved[self.fused][3, 5] = 7.0
        report = publish(publisher, engine, moved, socket)
        assert (report.unverified_tensors, report.changed_elements, report.seeded_workers) == (0, 1, 0)


class TestExpertsFp32OnTwoWorkers(VllmSuite):
    """Experts cut over tensor-parallel workers; 40 columns each, which the CPU kernel pads to 64."""

    tied, dtype, workers, model = False, "float32", 2, tiny_qwen3_moe
    fused = "model.layers.1.mlp.experts.4.up_proj.weight"
