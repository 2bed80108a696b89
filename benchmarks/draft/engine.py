"""The drafter in the real vLLM on a real model: steps, and time beside the same engine without it.

    OMP_NUM_THREADS=1 make bench-draft ARGS=--engine

One thread: two wait for each other at every operation as soon as anything else runs. Needs SmolLM2-135M-Instruct (`make
demo MODEL=smollm2` installs it; 93 MB). Two engines in one process, in fp32, take turns at the same requests. Small
batches repeat their prompts as the samples and epochs of a rollout do, greedily, and every answer is compared; the
large one asks for what nobody has seen, at temperature 1, so that drafts cannot pay and only their cost is left.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from bars import Bar

ROUNDS = 5
TOKENS = 64
CASES = ((1, 0.0), (4, 0.0), (32, 1.0))
"""Requests at once, and their temperature: at 0 every answer must be the same, and repeats are copies."""


@dataclass
class Run:
    """What one engine did in one round."""

    steps: int
    seconds: float
    answers: list[list[int]]


class Engine:
    """A `vllm.LLM` in this process, its steps counted."""

    def __init__(self, model: str, drafts: bool) -> None:
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1"
        )
        from vllm import LLM

        from slipstream.plugins.vllm.drafter import speculative_config

        self.llm = LLM(
            model=model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=512,
            max_num_seqs=64,
            kv_cache_memory_bytes=1 << 30,
            disable_log_stats=True,
            worker_extension_cls="slipstream.plugins.vllm.worker_extension.WorkerExtension",
            speculative_config=speculative_config(16) if drafts else None,
        )
        self.steps = 0
        step = self.llm.llm_engine.step

        def counted() -> Any:
            self.steps += 1
            return step()

        self.llm.llm_engine.step = counted  # type: ignore[method-assign]

    def run(self, prompts: list[list[int]], temperature: float) -> Run:
        """Answer all at once."""
        from vllm import SamplingParams

        params = [
            SamplingParams(temperature=temperature, max_tokens=TOKENS, ignore_eos=True, seed=index, detokenize=False)
            for index in range(len(prompts))
        ]
        self.steps, start = 0, time.perf_counter()
        outputs = self.llm.generate([{"prompt_token_ids": each} for each in prompts], params, use_tqdm=False)
        seconds = time.perf_counter() - start
        return Run(self.steps, seconds, [list(output.outputs[0].token_ids) for output in outputs])

    def drafted(self) -> float:
        """Drafted tokens that were verified so far."""
        return float(self.llm.collective_rpc("slipstream_drafter_statistics")[0]["verified"])


def requests(batch: int, seed: int, tokenizer: Any) -> list[list[int]]:
    """Prompts of small problems."""
    generator = random.Random(seed)
    texts = [
        f"A shop sells {generator.randint(3, 99)} pens at {generator.randint(2, 9)} dollars and "
        f"{generator.randint(3, 99)} books at {generator.randint(5, 40)} dollars. How much is that? Explain your steps."
        for _ in range(batch)
    ]
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in texts
    ]


def rows(rounds: int = ROUNDS) -> Iterator[dict[str, Any]]:
    """One row a case; the round that fills the history and warms the engines up is not counted."""
    from slipstream.plugins.verl.demo.smollm2 import cached_smollm2

    model = str(cached_smollm2())
    plain, drafting = Engine(model, drafts=False), Engine(model, drafts=True)
    tokenizer = plain.llm.get_tokenizer()
    for batch, temperature in CASES:
        repeated = batch < 32
        found: list[tuple[Run, Run]] = []
        before = drafting.drafted()
        for turn in range(rounds + 1):
            asked = requests(batch, batch if repeated else 100 + turn, tokenizer)
            order = (plain, drafting) if turn % 2 else (drafting, plain)
            runs = {engine: engine.run(asked, temperature) for engine in order}
            if turn:
                found.append((runs[plain], runs[drafting]))
        yield {
            "kind": "engine",
            "batch": batch,
            "prompts": "repeated" if repeated else "new",
            "steps": sum(ours.steps for _, ours in found),
            "steps without": sum(theirs.steps for theirs, _ in found),
            "seconds": median(ours.seconds for _, ours in found),
            "seconds without": median(theirs.seconds for theirs, _ in found),
            "time ratio": median(ours.seconds / theirs.seconds for theirs, ours in found),
            "drafted": drafting.drafted() - before,
            "answers alike": sum(a == b for pair in found for a, b in zip(*(r.answers for r in pair), strict=True)),
            "answers": sum(len(ours.answers) for ours, _ in found),
        }


def bars(found: list[dict[str, Any]]) -> Iterator[Bar]:
    """Small batches finish in fewer steps and less time; a large one takes no longer than without."""
    for row in found:
        where = f"engine, batch {row['batch']}"
        peer = f"{row['seconds without']:.2f} s without"
        if row["prompts"] == "repeated":
            yield Bar.at_least(f"{where}, same answers", row["answers alike"] / row["answers"], "share", 1.0)
            yield Bar.at_most(f"{where}, steps", row["steps"] / row["steps without"], "of those without", 0.99)
            yield Bar.at_most(f"{where}, time", row["time ratio"], "of that without", 0.99, peer)
        else:
            yield Bar.at_most(f"{where}, time", row["time ratio"], "of that without", 1.02, peer)
