"""The cells of the rollout benchmark: workload, load, replicas and constants, with what must hold for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from slipstream.core.rollout.costs import SMALL_MODEL
from slipstream.core.rollout.requests import ReplicaLimits
from slipstream.core.rollout.simulation import shapes
from slipstream.core.rollout.simulation.engine import EngineModel
from slipstream.core.rollout.simulation.workload import Trajectory

Make = Callable[[shapes.Recordings, int, int], list[Trajectory]]

MULTI_TURN_LONG: Make = partial(shapes.multi_turn, scale=6)
BASE = EngineModel()


@dataclass(frozen=True)
class Cell:
    """One workload at one load."""

    name: str
    make: Make
    groups: int
    bar: float | None = None
    """Least speed over the best peer; None reports only."""

    quick: bool = False
    seeds: int = 6
    """More for small workloads, where chance decides most; the best of six peers profits from too few."""

    model: EngineModel = field(default_factory=EngineModel)
    replicas: int = 4


CELLS = (
    Cell("multi-turn short, low load", shapes.multi_turn, 16, 0.98, seeds=16),
    Cell("multi-turn short, medium load", shapes.multi_turn, 64, 0.98, quick=True, seeds=16),
    Cell("multi-turn short, high load", shapes.multi_turn, 256, 1.8, True),
    Cell("multi-turn short, very high load", shapes.multi_turn, 1024, 1.8, seeds=3),
    Cell("multi-turn long, low load", MULTI_TURN_LONG, 6, 0.98, seeds=16),
    Cell("multi-turn long, medium load", MULTI_TURN_LONG, 20, 1.15, quick=True, seeds=16),
    Cell("multi-turn long, high load", MULTI_TURN_LONG, 80, 1.75, True),
    Cell("multi-turn long, very high load", MULTI_TURN_LONG, 160, 1.75, seeds=3),
    Cell("single-turn long tail, low load", shapes.single_turn, 16, 0.98, seeds=16),
    Cell("single-turn long tail, medium load", shapes.single_turn, 64, 0.98, quick=True, seeds=16),
    Cell("single-turn long tail, high load", shapes.single_turn, 256, 1.03, True),
    Cell("single-turn long tail, very high load", shapes.single_turn, 1024, 0.98, seeds=3),
    Cell("shared heavy prompt, low load", shapes.heavy_prompt, 16, 0.98, seeds=16),
    Cell("shared heavy prompt, medium load", shapes.heavy_prompt, 64, 0.98, seeds=16),
    Cell("shared heavy prompt, high load", shapes.heavy_prompt, 256, 1.0, True),
    Cell("shared heavy prompt, very high load", shapes.heavy_prompt, 1024, 1.0, seeds=3),
)


def _kv(tokens: int) -> EngineModel:
    return replace(BASE, limits=ReplicaLimits(tokens, 64))


_SLOW: Make = partial(shapes.multi_turn, waits=10.0)
_SLOW_LONG: Make = partial(shapes.multi_turn, scale=6, waits=10.0)
_SMALL = replace(BASE, costs=SMALL_MODEL)
_WIDE = replace(BASE, limits=ReplicaLimits(400_000, 256))

SENSITIVITY = (
    Cell("tools 10x slower, short, high load", _SLOW, 256),
    Cell("tools 10x slower, long, high load", _SLOW_LONG, 80),
    Cell("half the KV, long, high load", MULTI_TURN_LONG, 80, model=_kv(200_000)),
    Cell("2x KV, long, high load", MULTI_TURN_LONG, 80, model=_kv(800_000)),
    Cell("4x KV, long, high load", MULTI_TURN_LONG, 80, model=_kv(1_600_000)),
    Cell("256 running, short, high load", shapes.multi_turn, 256, model=_WIDE),
    Cell("256 running, single-turn, high load", shapes.single_turn, 256, model=_WIDE),
    Cell("16 replicas, long, high load", MULTI_TURN_LONG, 160, replicas=16),
    Cell("16 replicas, short, high load", shapes.multi_turn, 1024, replicas=16),
    Cell("8B constants, short, high load", shapes.multi_turn, 256, model=_SMALL),
    Cell("8B constants, long, high load", MULTI_TURN_LONG, 80, model=_SMALL),
    Cell("8B constants, long, medium load", MULTI_TURN_LONG, 20, model=_SMALL),
    Cell("8B constants, single-turn, high load", shapes.single_turn, 256, model=_SMALL),
)
"""Reported, without bars."""
