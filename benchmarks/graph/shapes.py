"""The study's fifteen shapes: five length distributions, each with rollout at 50, 70 and 85 % of a serial step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from slipstream.core.graph.static_plans import rollout_seconds
from slipstream.core.graph.workload import DecodeCost, MemoryFloor, Pipeline, StageSeconds, Workload

LONGEST = 8192.0
ITERATION = 0.008
COST = DecodeCost(iteration=ITERATION, per_request=ITERATION / 64, prefill=0.8 * ITERATION / 64)
SHARES = (0.5, 0.7, 0.85)
NAMES = ("math", "reason", "tau", "heavy", "flat")
GROUP = {"math": 8, "reason": 4, "tau": 4, "heavy": 8, "flat": 8}
TURN = 100.0  # tokens that a tool turn counts as
FLOORS = {
    "0.6B": MemoryFloor(0.15, 0.25),
    "4B": MemoryFloor(0.35, 0.50),
    "8B": MemoryFloor(0.40, 0.58),
    "32B": MemoryFloor(0.50, 0.80),
}


class Lengths:
    """Prompt groups of one distribution, recorded where there are recordings."""

    def __init__(self, data: Path) -> None:
        """Read what there is under `data`; `generated` names the distributions that were drawn instead."""
        self.generated: list[str] = []
        self._groups: dict[str, list[np.ndarray]] = {}
        rollouts = data / "rollouts"
        random = np.random.default_rng(1)
        for name, read, sigma in (
            ("math", lambda: _groups(rollouts / "math100x8_qwen25math.jsonl.zst", 0.0), 0.45),
            (
                "tau",
                lambda: (
                    _groups(rollouts / "tau_airline.jsonl.zst", TURN)
                    + _groups(rollouts / "tau_retail_variants.jsonl.zst", TURN)
                ),
                0.35,
            ),
        ):
            try:
                self._groups[name] = read()
            except FileNotFoundError:
                self.generated.append(name)
                self._groups[name] = [
                    np.exp(random.normal(0.0, 0.6) * sigma * 2 + random.normal(0.0, sigma, GROUP[name]))
                    for _ in range(100)
                ]
        self._groups["reason"] = [each[: GROUP["reason"]] for each in self._groups["math"]]

    def draw(self, name: str, requests: int, steps: int, seed: int) -> list[np.ndarray]:
        """Return float64[requests] for each step: whole groups with 15 % jitter, scaled so that the longest recorded
        one is at `LONGEST`, where longer ones are cut."""
        random = np.random.default_rng((seed, NAMES.index(name), requests, steps))
        group = GROUP[name]
        drawn = []
        for _ in range(steps):
            if name == "heavy":
                step = random.lognormal(0.0, 1.0, requests) * (LONGEST / (7.8 * np.exp(0.5)))
            elif name == "flat":
                step = np.maximum(500.0, random.normal(6000.0, 1200.0, requests))
            else:
                source = self._groups[name]
                chosen = [source[i] for i in random.integers(0, len(source), -(-requests // group))]
                step = np.concatenate([np.resize(each, group) for each in chosen])[:requests]
                step = step * random.lognormal(0.0, 0.15, requests) * (LONGEST / max(each.max() for each in source))
            if name == "reason":
                step[random.random(requests) < 0.1] = LONGEST
            drawn.append(np.clip(np.round(step), 1.0, LONGEST))
        return drawn


def pipeline(
    lengths: Lengths,
    shape: str,
    share: float,
    *,
    name: str,
    workers: int,
    per_worker: int = 32,
    steps: int = 6,
    seed: int = 0,
    staleness: int = 0,
    model: str = "4B",
    scale: float = 1.0,
) -> Pipeline:
    """Return a pipeline whose rollouts take `share` of its serial steps."""
    drawn = lengths.draw(shape, per_worker * workers, steps, seed)
    cost = DecodeCost(COST.iteration * scale, COST.per_request * scale, COST.prefill * scale)
    made = Pipeline(
        name=name,
        decode=cost,
        stages=StageSeconds(0.0, 0.0, 0.0),
        lengths=tuple(tuple(step.tolist()) for step in drawn),
        group=GROUP[shape],
        memory=FLOORS[model],
        staleness=staleness,
    )
    rollout = float(np.mean([rollout_seconds(made, step, workers) for step in drawn]))
    rest = rollout * (1.0 - share) / share
    stages = StageSeconds(logprob=0.25 * rest, train=0.65 * rest, sync=0.10 * rest)
    return Pipeline(**{**{f: getattr(made, f) for f in Pipeline.__struct_fields__}, "stages": stages})


def workload(
    lengths: Lengths,
    shape: str,
    share: float,
    *,
    pipelines: int,
    workers: int = 8,
    per_worker: int = 32,
    steps: int = 6,
    seed: int = 0,
    staleness: int = 0,
    interference: float = 1.0,
) -> Workload:
    """Return equal pipelines with different draws of one shape."""
    return Workload(
        workers=workers,
        pipelines=tuple(
            pipeline(
                lengths,
                shape,
                share,
                name=f"{shape}-{p}",
                workers=workers,
                per_worker=per_worker,
                steps=steps,
                seed=100 * seed + p,
                staleness=staleness,
            )
            for p in range(pipelines)
        ),
        interference=interference,
        name=f"{shape} {share:g} x{pipelines}",
    )


def cells() -> Iterator[tuple[str, float]]:
    """Yield the fifteen (distribution, rollout share)."""
    for shape in NAMES:
        for share in SHARES:
            yield shape, share


def _groups(file: Path, turn: float) -> list[np.ndarray]:
    by_task: dict[object, list[float]] = {}
    if not file.exists():
        raise FileNotFoundError(file)
    text = pa.input_stream(str(file), compression="zstd").read().decode()
    for line in text.splitlines():
        attempt = json.loads(line)
        own = [s for s in attempt["segments"] if s["role"] in ("assistant", "completion")]
        tokens = sum(len(s["ids"]) for s in own) + turn * max(0, len(own) - 1)
        by_task.setdefault(attempt["task"], []).append(float(max(1.0, tokens)))
    return [np.array(each) for each in by_task.values()]
