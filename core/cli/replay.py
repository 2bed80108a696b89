"""``slipstream replay``: a rollout step by simulation, one routing policy beside the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.core.rollout.requests import ReplicaLimits
from slipstream.core.rollout.simulation import shapes
from slipstream.core.rollout.simulation.bound import lower_bound
from slipstream.core.rollout.simulation.cluster import Outcome
from slipstream.core.rollout.simulation.engine import EngineModel
from slipstream.core.rollout.simulation.recorded import read_rollouts, read_trace
from slipstream.core.rollout.simulation.replay import POLICIES, percentile, replay
from slipstream.core.rollout.simulation.workload import Trajectory, Workload

_SHAPES: dict[str, Callable[[shapes.Recordings, int, int], list[Trajectory]]] = {
    "multi_turn": shapes.multi_turn,
    "multi_turn_long": partial(shapes.multi_turn, scale=6),
    "single_turn": shapes.single_turn,
    "heavy_prompt": shapes.heavy_prompt,
}


def load(data: Path | None, shape: str, groups: int, seed: int, *, stretch: float, count: int) -> Workload:
    """Return the workload that the arguments ask for.

    :raises ValueError: for an unknown shape, or data that is neither a known file nor a folder with ``rollouts/``.
    """
    if data is not None and data.is_file():
        if data.parent.name == "traces" or data.name.endswith(".csv.zst"):
            return shapes.stream(read_trace(data), data.name, count=count, stretch=stretch)
        tasks = read_rollouts(data)
        return shapes.step(lambda at: shapes.recorded_groups(tasks, groups, at), data.name, seed)
    if shape not in _SHAPES:
        raise ValueError(f"unknown workload {shape!r}; known: {', '.join(_SHAPES)}")
    if data is not None and not (data / "rollouts").is_dir():
        raise ValueError(
            f"expected a file, or a folder that holds rollouts/, got {data}; leave it out to generate lengths"
        )
    make = _SHAPES[shape]
    return shapes.step(lambda at: make(shapes.Recordings(data), groups, at), shape, seed)


def run(
    workload: Workload,
    policies: Sequence[str] | None,
    replicas: int,
    limits: ReplicaLimits,
    seed: int,
    *,
    as_json: bool,
) -> None:
    """Play a workload and print what happened."""
    models = [EngineModel(limits)] * replicas
    outcomes = replay(workload, policies or POLICIES, models, seed=seed)
    bound = lower_bound(workload, models)
    rows = {name: _row(outcome) for name, outcome in outcomes.items()}
    if as_json:
        head = {"workload": workload.name, "trajectories": len(workload.trajectories), "lower_bound_seconds": bound}
        print(json.dumps({**head, "policies": rows}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=_title(workload, bound, replicas), title_justify="left")
    for heading in ("policy", *next(iter(rows.values()))):
        table.add_column(heading.replace("_", " "))
    for name, row in rows.items():
        table.add_row(name, *(f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" for value in row.values()))
    Console().print(table)


def _title(workload: Workload, bound: float, replicas: int) -> str:
    return (
        f"{workload.name}: {len(workload.trajectories):,} trajectories, {workload.turns:,} turns, "
        f"{workload.output_tokens:,} tokens on {replicas} replicas; simulated; knowing all lengths: {bound:,.0f} s"
    )


def _row(outcome: Outcome) -> dict[str, Any]:
    return {
        "seconds": outcome.seconds,
        "tokens_per_second": outcome.output_tokens / outcome.seconds,
        "hit_percent": 100 * outcome.hit_rate,
        "recomputed_tokens": outcome.recomputed_tokens,
        "preemptions": outcome.preemptions,
        "migrations": outcome.migrations,
        "p99_turn_seconds": percentile(outcome.turn_seconds, 0.99),
        "p99_returning_seconds": percentile(outcome.returning_seconds, 0.99),
    }
