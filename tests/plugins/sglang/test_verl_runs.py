"""Real verl runs with real SGLang rollouts, switched on by the override."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.plugins.verl.demo import task
from slipstream.plugins.verl.demo.command import training_command
from slipstream.plugins.verl.demo.model import cached_model
from slipstream.plugins.verl.demo.runner import RunResult, run_training

pytestmark = [pytest.mark.run, pytest.mark.timeout(700)]
STEPS = 3
ROLLOUT = "actor_rollout_ref.rollout"
ENGINE = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "enable_memory_saver": "false",  # its library is CUDA's
    "max_total_tokens": 8192,
    "sleep_on_idle": "true",
}


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[RunResult, list[dict[str, Any]]]]:
    folder = tmp_path_factory.mktemp("runs")
    train_file = task.write_parquet(task.problems(512, seed=1), folder / "train.parquet")

    def run(name: str, *overrides: str, modules: str = "", **settings: Any) -> tuple[RunResult, list[dict[str, Any]]]:
        events = folder / f"{name}.jsonl"
        engine = [f"+{ROLLOUT}.engine_kwargs.sglang.{key}={value}" for key, value in ENGINE.items()]
        log = [f"slipstream.events={events}"] if overrides else []
        command = training_command(
            model=cached_model(),
            train_file=train_file,
            folder=folder / name,
            steps=STEPS,
            dtype="float32",
            overrides=[f"{ROLLOUT}.name=sglang", *engine, *overrides, *log],
            **settings,
        )
        command.env["TORCHDYNAMO_DISABLE"] = "1"  # SGLang compiles how it samples, for longer than a run takes
        if modules:
            command.env["VERL_USE_EXTERNAL_MODULES"] += f",{modules}"
        result = run_training(command, timeout=300)
        return result, _syncs(events)

    return run


def _syncs(events: Path) -> list[dict[str, Any]]:
    lines = events.read_text().splitlines() if events.exists() else []
    return [event for event in map(json.loads, lines) if event["kind"] == "weight_sync"]


def test_rollouts_are_the_same_token_for_token(train):
    """fp32, a seed for each sample, the same command with and without the override.

    Only deltas wrote what generates, until the last sync found it equal to a dense load. The engine's probabilities of
    what it wrote are the trainer's.
    """
    native, _ = train("native", modules="verl_sglang_native")
    ours, syncs = train("slipstream", "+slipstream=sync", f"slipstream.weight_sync.audit_every={STEPS + 1}")
    for step in range(1, STEPS + 1):
        rollouts = native.rollouts(step)
        assert ours.rollouts(step) == rollouts
        assert len({(rollout.prompt, rollout.response) for rollout in rollouts}) > 16, "samples of a group differ"
    assert [event["target"] for event in syncs] == list(range(1, STEPS + 2))
    assert [event["seeded_workers"] for event in syncs] == [1] + [0] * STEPS
    assert [event["audited_tensors"] > 0 for event in syncs] == [False] * STEPS + [True]
    assert all(event["changed_elements"] > 0 for event in syncs)
    assert all(event["unverified_tensors"] == 0 for event in syncs)
    assert all(step.values["training/rollout_probs_diff_max"] < 1e-5 for step in ours.steps)


def test_drafts_and_the_router(train):
    """Every part of slipstream at once; each sync is compared with a dense load.

    SGLang verifies drafts greedily on a CPU, so the samples of a prompt are one text.
    """
    ours, syncs = train("full", "+slipstream=full", "slipstream.weight_sync.audit_every=1", f"{ROLLOUT}.top_k=1")
    assert [event["seeded_workers"] for event in syncs] == [1] + [0] * STEPS
    assert all(event["audited_tensors"] > 0 for event in syncs)
    for step in range(1, STEPS + 1):
        texts: dict[str, set[str]] = {}
        for rollout in ours.rollouts(step):
            texts.setdefault(rollout.prompt, set()).add(rollout.response)
        assert all(len(responses) == 1 for responses in texts.values())
    metrics = ours.steps[-1].values
    assert metrics["slipstream/drafter/accepted"] > 0
    assert 0 < metrics["slipstream/drafter/acceptance"] <= 1
    assert metrics["slipstream/drafter/tokens_per_step"] > 1
    assert metrics["slipstream/drafter/history_tokens"] > 0
    assert metrics["slipstream/router/replica_0/answers"] == 16 * 8
    assert 0 < metrics["slipstream/router/hit_rate"] < 1
