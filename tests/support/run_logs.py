"""Event logs of made-up runs: every kind of record, at times that are known."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import msgspec

from slipstream.core.telemetry.records import (
    Drafting,
    Record,
    ReplicaLoad,
    Routing,
    RunStarted,
    StageFinished,
    StageStarted,
    StepFinished,
    WeightSync,
)

STAGES = {"gen": 6.0, "old_log_prob": 1.5, "update_actor": 3.0, "update_weights": 0.5}
SETTINGS = {"weight_sync": {"mode": "delta"}, "drafter": {"mode": "suffix"}, "router": {"mode": "cache_aware"}}


def write_log(path: Path, records: Iterable[Record]) -> Path:
    """Write records with the times that they have."""
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    return path


def run(steps: int = 12, layers: int = 24, seed: int = 1, start: float = 1.7e9) -> list[Record]:
    """A run of every feature: a seed, then `steps` steps of 11 s that end with a delta of about 1 % of the weights."""
    draw = random.Random(seed)
    clock = start
    found: list[Record] = [
        RunStarted(time=clock, name="toy/run", versions={"verl": "0.9.1", "vllm": "0.29.0"}, settings=SETTINGS),
        sync(clock + 5, None, 0, 1),
    ]
    clock += 6
    for step in range(1, steps + 1):
        begin = clock
        for name, seconds in STAGES.items():
            found.append(StageStarted(time=clock, name=name, step=step))
            clock += seconds
            if name == "update_weights":
                shares = {f"model.layers.{i}": 0.004 * (1 + i) / layers * draw.uniform(0.5, 2) for i in range(layers)}
                found.append(sync(clock - 0.01, step, step, step + 1, shares))
            found.append(StageFinished(time=clock, name=name, step=step))
        found.append(drafting(clock, step, min(0.7, 0.2 + 0.05 * step)))
        loads = {
            str(i): ReplicaLoad(
                running=8 * (1 + i) + step, answers=32, output_tokens=4000 * (1 + i), hit_rate=0.5 + 0.1 * i
            )
            for i in range(2)
        }
        found.append(
            Routing(
                time=clock,
                step=step,
                queue_mean=2,
                queue_max=9,
                wait_seconds_mean=0.3,
                wait_seconds_max=2,
                hit_rate=0.6,
                prompt_tokens=50_000,
                recomputed_tokens=2_000,
                imbalance=1.3,
                migrations=step % 3,
                parked=1,
                replicas=loads,
            )
        )
        found.append(
            StepFinished(
                time=clock,
                step=step,
                seconds=clock - begin,
                stages=dict(STAGES),
                sync_seconds=STAGES["update_weights"],
                rollout_seconds=STAGES["gen"],
                reward=0.3 + 0.02 * step,
                response_tokens=800 + step,
                tokens_per_second=3000,
            )
        )
    return found


def sync(time: float, step: int | None, base: int, target: int, shares: dict[str, float] | None = None) -> WeightSync:
    """A seed without `shares`, else a delta that changes these shares of a million weights a layer."""
    counts = {name: (int(1e6 * share), 1_000_000) for name, share in (shares or {}).items()}
    total = 24_000_000
    changed = sum(part for part, _ in counts.values()) if shares else total
    return WeightSync(
        time=time,
        step=step,
        run=7,
        base=base if shares else None,
        target=target,
        stage_seconds=0.2,
        deliver_seconds=0.25,
        apply_seconds=0.1,
        payload_bytes=3 * changed if shares else 4 * total,
        dense_bytes=4 * total,
        changed_elements=changed,
        total_elements=total,
        tensors=200,
        workers=2,
        seeded_workers=0 if shares else 2,
        level=0,
        unverified_tensors=0,
        layers=counts,
    )


def drafting(time: float, step: int, acceptance: float, off_share: float = 0.1) -> Drafting:
    """A step of drafting."""
    return Drafting(
        time=time,
        step=step,
        acceptance=acceptance,
        tokens_per_step=1 + acceptance,
        drafted=1200,
        verified=1000,
        accepted=1000 * acceptance,
        emitted=4000,
        seconds=0.1,
        off_share=off_share,
        drafting=1.0,
        turned_on=1,
        turned_off=1,
        probes=3,
        fed=32,
        history_tokens=50_000,
        history_mbytes=5,
    )
