"""The simulated engine against a real vLLM on this CPU: constants fitted on some workloads, times predicted for others.

    .venv/bin/python benchmarks/rollout/calibrate.py

A tiny random Qwen2 (the tests') runs in this process. Every engine step is timed, its batch is known from the outputs,
and `CostFit` learns the constants, as a router does from reports. Then each held-out workload is played on the real
engine and in the simulator with the same arrivals, limits and lengths. Prints predicted and measured seconds, hit rates
and steps. Times are CPU times of one thread.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from rich.console import Console

from slipstream.core.rollout import CostFit, LoadReport, ReplicaLimits, Segment, StepCosts
from slipstream.core.rollout.simulation.cluster import Cluster
from slipstream.core.rollout.simulation.engine import EngineModel
from slipstream.core.rollout.simulation.replay import factory
from slipstream.core.rollout.simulation.workload import Trajectory, TurnWork, Workload

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "sync"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
import tiny_qwen2
import torch
from bars import print_rows

MAX_RUNNING, CHUNK, BLOCK, CONTEXT = 16, 1024, 32, 512
PRIOR = StepCosts(step=5e-3, request=0.5e-3, context=1e-6, prefill=20e-6, prefill_quadratic=1e-9)


@dataclass(frozen=True)
class Shape:
    """A batch of requests that arrive together."""

    name: str
    requests: int
    shared: int
    own: tuple[int, int]
    output: tuple[int, int]


FITTED = (
    Shape("one", 1, 0, (64, 64), (60, 60)),
    Shape("few", 4, 0, (32, 200), (20, 120)),
    Shape("many", 48, 0, (16, 300), (10, 120)),
    Shape("prefill", 40, 0, (300, 440), (1, 4)),
    Shape("decode", 16, 0, (4, 8), (300, 400)),
)
HELD_OUT = (
    Shape("two long answers", 2, 0, (40, 60), (350, 400)),
    Shape("sixteen, even", 16, 0, (100, 100), (100, 100)),
    Shape("queue of 64, mixed", 64, 0, (20, 200), (20, 150)),
    Shape("queue of 64, long tail", 64, 0, (30, 60), (8, 400)),
    Shape("prompts only", 64, 0, (200, 400), (1, 2)),
    Shape("shared prompt of 320", 64, 320, (10, 40), (20, 100)),
    Shape("shared prompt, short answers", 96, 400, (10, 20), (2, 8)),
)


def workload(shape: Shape, seed: int) -> Workload:
    """Draw the requests of a shape."""
    chance = random.Random(seed)
    shared = (Segment(("system", shape.name), shape.shared),) if shape.shared else ()
    turns = [TurnWork(chance.randint(*shape.own), chance.randint(*shape.output)) for _ in range(shape.requests)]
    return Workload(shape.name, [Trajectory(name, name, shared, (turn,)) for name, turn in enumerate(turns)])


class RealEngine:
    """vLLM, stepped by hand."""

    def __init__(self, folder: Path) -> None:
        from vllm import LLM

        self.llm = LLM(
            model=str(folder),
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            max_model_len=CONTEXT,
            max_num_seqs=MAX_RUNNING,
            max_num_batched_tokens=CHUNK,
            block_size=BLOCK,
            kv_cache_memory_bytes=64 << 20,
            enable_prefix_caching=True,
            disable_log_stats=True,
            seed=0,
        )

    def play(self, work: Workload, seed: int, fit: CostFit | None = None) -> tuple[float, int, float]:
        """Run a workload; return seconds, steps and the hit rate, and report each step to `fit`."""
        from vllm import SamplingParams

        self.llm.reset_prefix_cache()
        chance = random.Random(seed)
        shared = [chance.randrange(tiny_qwen2.VOCAB) for _ in range(CONTEXT)]
        engine: Any = self.llm.llm_engine
        lengths: dict[str, int] = {}
        for each in work.trajectories:
            own = [chance.randrange(tiny_qwen2.VOCAB) for _ in range(each.turns[0].input_tokens)]
            params = SamplingParams(
                max_tokens=each.turns[0].output_tokens, ignore_eos=True, temperature=0.0, detokenize=False
            )
            name = f"{work.name}-{seed}-{each.name}"
            lengths[name] = each.shared_tokens + len(own)
            engine.add_request(name, {"prompt_token_ids": shared[: each.shared_tokens] + own}, params)
        done: dict[str, int] = {}
        cached = 0
        steps = 0
        start = time.process_time()
        while engine.has_unfinished_requests():
            before = time.process_time()
            outputs = engine.step()
            seconds = time.process_time() - before
            steps += 1
            decoding = context = prefill = 0
            quadratic = 0.0
            for output in outputs:
                produced = len(output.outputs[0].token_ids)
                if output.request_id in done:
                    decoding += 1
                    context += lengths[output.request_id] + done[output.request_id]
                else:
                    hit = output.num_cached_tokens or 0
                    cached += hit
                    prefill += lengths[output.request_id] - hit
                    quadratic += lengths[output.request_id] ** 2 - hit**2
                done[output.request_id] = produced
            if fit is not None:
                fit.add(LoadReport(1, seconds, decoding, context, prefill, quadratic))
        expected = {f"{work.name}-{seed}-{each.name}": each.output_tokens for each in work.trajectories}
        if done != expected:
            raise RuntimeError(f"{work.name}: the engine generated other lengths than asked for")
        return time.process_time() - start, steps, cached / sum(lengths.values())


def main() -> int:
    """Fit, predict, compare."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        weights = tiny_qwen2.build(False)
        real = RealEngine(tiny_qwen2.save(weights, Path(folder) / "model", False, torch.float32))
        real.play(workload(FITTED[2], 99), 99)  # warm up
        fit = CostFit(PRIOR, noise=0.2, forgetting=1.0)
        measured = []
        for number, shape in enumerate(HELD_OUT):  # in turn, so that the machine's other load weighs on both alike
            for fitted in FITTED:
                real.play(workload(fitted, number), number, fit)
            work = workload(shape, 1000 + number)
            runs = [real.play(work, 2000 + 10 * number + again) for again in range(3)]
            measured.append((work, sorted(runs)[1]))
        kv_tokens = real.llm.llm_engine.vllm_config.cache_config.num_gpu_blocks * BLOCK
        model = EngineModel(ReplicaLimits(kv_tokens, MAX_RUNNING), fit.costs, CHUNK, BLOCK)
        rows = []
        for work, (seconds, steps, hits) in measured:
            cluster = Cluster(work, factory("round_robin", work), [model], check=True)
            predicted = cluster.run()
            rows.append(
                {
                    "kind": "calibration",
                    "workload": work.name,
                    "predicted s": predicted.seconds,
                    "measured s": seconds,
                    "error %": 100 * (predicted.seconds / seconds - 1),
                    "predicted steps": cluster.replicas[0].counters.steps,
                    "measured steps": steps,
                    "predicted hit %": 100 * predicted.hit_rate,
                    "measured hit %": 100 * hits,
                }
            )
    console = Console(width=150)
    console.print(f"fitted on {fit.reports} steps: {fit.costs}, KV {kv_tokens} tokens")
    print_rows(console, "held-out workloads", rows)
    mean = sum(abs(float(row["error %"])) for row in rows) / len(rows)  # type: ignore[arg-type]
    console.print(f"mean error {mean:.1f} % over {len(rows)} workloads")
    return 0


if __name__ == "__main__":
    sys.exit(main())
