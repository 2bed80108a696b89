"""The drafter in the real vLLM on a real model: steps, and time beside the same engine without it.

    OMP_NUM_THREADS=1 make bench-draft ARGS=--engine

One thread: two wait for each other at every operation as soon as anything else runs. Needs SmolLM2-135M-Instruct (`make
demo MODEL=smollm2` installs it; 93 MB). Two engines in one process, in fp32, answer the same requests, step by step in
turn, so that whatever else the machine does meets both. Small batches repeat their prompts as the samples and epochs of
a rollout do, greedily, and every answer is compared; the large one asks for what nobody has seen, at temperature 1, so
that drafts cannot pay and only their cost is left.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
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
    cpu_seconds: float
    """Of the process, which is what the seconds would be if nothing else ran."""
    answers: list[list[int]]


class Engine:
    """A `vllm.LLM` in this process, its steps timed."""

    def __init__(self, model: str, drafts: bool) -> None:
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1"
        )
        from vllm import LLM

        from slipstream.plugins.vllm.drafter import proposer_of, speculative_config

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
        (self._proposer,) = self.llm.collective_rpc(proposer_of)
        self._asked = itertools.count()
        self._answers: dict[str, list[int]] = {}
        self._run = Run(0, 0.0, 0.0, [])
        self._ended = 0.0

    def ask(self, prompts: list[list[int]], temperature: float) -> None:
        """Begin a round."""
        from vllm import SamplingParams

        self._answers.clear()
        for index, prompt in enumerate(prompts):
            name = f"{next(self._asked):08}"
            params = SamplingParams(
                temperature=temperature, max_tokens=TOKENS, ignore_eos=True, seed=index, detokenize=False
            )
            self.llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, params)
        self._run = Run(0, 0.0, 0.0, [])

    def step(self) -> bool:
        """Go on by a step; False when everything is answered."""
        if not self.llm.llm_engine.has_unfinished_requests():
            return False
        start, used = time.perf_counter(), time.process_time()
        if self._proposer is not None and self._proposer._ended:
            self._proposer._ended += start - self._ended  # the other engine's step is no part of this one's
        outputs = self.llm.llm_engine.step()
        self._ended = time.perf_counter()
        self._run.seconds += self._ended - start
        self._run.cpu_seconds += time.process_time() - used
        self._run.steps += 1
        self._answers |= {each.request_id: list(each.outputs[0].token_ids) for each in outputs if each.finished}
        return True

    def result(self) -> Run:
        """What the round took."""
        self._run.answers = [self._answers[name] for name in sorted(self._answers)]
        return self._run

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
            for each in (plain, drafting):
                each.ask(asked, temperature)
            while any([plain.step(), drafting.step()]):
                pass
            if turn:
                found.append((plain.result(), drafting.result()))
        yield {
            "kind": "engine",
            "batch": batch,
            "prompts": "repeated" if repeated else "new",
            "steps": sum(ours.steps for _, ours in found),
            "steps without": sum(theirs.steps for theirs, _ in found),
            "seconds": sum(ours.seconds for _, ours in found),
            "seconds without": sum(theirs.seconds for theirs, _ in found),
            "time ratio": sum(ours.seconds for _, ours in found) / sum(theirs.seconds for theirs, _ in found),
            "CPU time ratio": sum(ours.cpu_seconds for _, ours in found)
            / sum(theirs.cpu_seconds for theirs, _ in found),
            "drafted": drafting.drafted() - before,
            "answers alike": sum(a == b for pair in found for a, b in zip(*(r.answers for r in pair), strict=True)),
            "answers": sum(len(ours.answers) for ours, _ in found),
        }


def bars(found: list[dict[str, Any]]) -> Iterator[Bar]:
    """Small batches finish in fewer steps and less time; a large one takes no longer than without, in CPU time, as
    other load on a shared machine moves the rest by more than the bar."""
    for row in found:
        where = f"engine, batch {row['batch']}"
        peer = f"{row['seconds without']:.2f} s without"
        if row["prompts"] == "repeated":
            yield Bar.at_least(f"{where}, same answers", row["answers alike"] / row["answers"], "share", 1.0)
            yield Bar.at_most(f"{where}, steps", row["steps"] / row["steps without"], "of those without", 0.99)
            yield Bar.at_most(f"{where}, time", row["time ratio"], "of that without", 0.99, peer)
        else:
            yield Bar.at_most(f"{where}, CPU time", row["CPU time ratio"], "of that without", 1.02, peer)
