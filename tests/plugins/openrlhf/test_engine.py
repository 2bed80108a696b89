"""The engine suite on OpenRLHF's engine actor, as Ray's workers have it but in this process, over the real vLLM."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_qwen2
import torch
from engine_weight_sync import EngineWeightSync, Weights

pytestmark = pytest.mark.timeout(900)
PROMPTS = [[5, 9, 17, 33, 2], list(range(40, 70))]


class ActorRollout:
    """A `RolloutEngine` over `SlipstreamRolloutActor`."""

    workers = 1

    def __init__(self, folder: Path) -> None:
        self._folder, self._fresh = folder, 0
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        start = tiny_qwen2.save(tiny_qwen2.build(True, seed=99), folder / "start", True, torch.bfloat16)
        self._actor = self._start(start, "dummy")

    def _start(self, folder: Path, load_format: str) -> Any:
        from slipstream.plugins.openrlhf.engine_actor import SlipstreamRolloutActor

        actor = SlipstreamRolloutActor.__new__(SlipstreamRolloutActor)
        started = actor.__init__(  # type: ignore[func-returns-value]  # as OpenRLHF's
            model=str(folder),
            load_format=load_format,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            enforce_eager=True,
            enable_prefix_caching=True,
            max_model_len=256,
            max_num_seqs=8,
            kv_cache_memory_bytes=64 << 20,
            tensor_parallel_size=1,
            distributed_executor_backend="uni",
            worker_extension_cls="openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap",
            num_gpus=1,
        )
        self._run(started)
        return actor

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(300)

    def _ask(self, method: str, *args: Any) -> Any:
        return self._run(self._actor.llm.collective_rpc(method, args=args))

    def sync(self, endpoint: str) -> None:
        self._run(self._actor.slipstream_sync([endpoint], 60.0))

    def checksums(self) -> list[dict[str, str]]:
        return self._run(self._actor.slipstream_checksums())

    def fresh_engine(self, weights: Weights) -> tuple[list[dict[str, str]], list[list[int]]]:
        self._fresh += 1
        folder = tiny_qwen2.save(weights, self._folder / f"fresh{self._fresh}", True, torch.bfloat16)
        actor = self._start(folder, "auto")
        try:
            return self._run(actor.slipstream_checksums()), self._greedy(actor)
        finally:
            actor.llm.shutdown()

    def lose_weights(self) -> None:
        self._ask("lose_weights")

    def break_loader(self) -> Callable[[], None]:
        self._ask("break_writes", True)
        return lambda: self._ask("break_writes", False)

    def generate(self) -> list[list[int]]:
        return self._greedy(self._actor)

    def _greedy(self, actor: Any) -> list[list[int]]:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)

        async def generate() -> list[list[int]]:
            await actor.reset_prefix_cache()
            outputs = await asyncio.gather(*(actor.generate(prompt, params) for prompt in PROMPTS))
            return [list(output.outputs[0].token_ids) for output in outputs]

        return self._run(generate())

    def close(self) -> None:
        self._actor.llm.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)


class TestOpenRlhfEngine(EngineWeightSync):
    """Tied head, bf16, one worker, prefix cache."""

    @pytest.fixture(scope="class")
    def engine(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActorRollout]:
        from slipstream.plugins.openrlhf import engine_actor

        with pytest.MonkeyPatch.context() as patch:
            for name, value in {
                "RAY_ADDRESS": "none: this process is in no cluster",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "OMP_NUM_THREADS": "1",
                "VLLM_ALLOW_INSECURE_SERIALIZATION": os.environ.get("VLLM_ALLOW_INSECURE_SERIALIZATION", "1"),
            }.items():
                patch.setenv(name, value)
            patch.setattr(engine_actor, "WORKER_EXTENSION", "openrlhf_test_extension.TestExtension")
            rollout = ActorRollout(tmp_path_factory.mktemp("vllm"))
            yield rollout
            rollout.close()

    @pytest.fixture
    def weights(self) -> Weights:
        return tiny_qwen2.build(True)
