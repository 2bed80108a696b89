"""Small workloads that every test of the scheduler can afford."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slipstream.core.graph.workload import DecodeCost, MemoryFloor, Pipeline, StageSeconds, Workload

COST = DecodeCost(iteration=0.008, per_request=0.000125, prefill=0.0001)


def make_pipeline(name: str, *, seed: int, requests: int, steps: int, **fields: Any) -> Pipeline:
    random = np.random.default_rng(seed)
    lengths = np.clip(np.round(random.lognormal(6.5, 0.9, (steps, requests))), 1, 8192)
    fields = {"decode": COST, "stages": StageSeconds(logprob=3.0, train=8.0, sync=1.0), "group": 4, **fields}
    return Pipeline(name=name, lengths=tuple(map(tuple, lengths.tolist())), **fields)


@pytest.fixture(scope="session")
def make_workload() -> Callable[..., Workload]:
    def make(
        pipelines: int = 2, *, workers: int = 4, requests: int = 32, steps: int = 2, seed: int = 0, **fields: Any
    ) -> Workload:
        return Workload(
            workers=workers,
            pipelines=tuple(
                make_pipeline(f"p{p}", seed=10 * seed + p, requests=requests, steps=steps, **fields)
                for p in range(pipelines)
            ),
        )

    return make


@pytest.fixture(scope="session")
def heavy_memory() -> MemoryFloor:
    return MemoryFloor(decode=0.5, train=0.8)
