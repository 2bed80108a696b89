"""Real verl runs with real vLLM, switched on by the override: same rollouts, same weights, both trainers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from metric_names import undescribed

from slipstream.core.telemetry.history import read_run
from slipstream.core.weights import TensorEngine
from slipstream.core.weights.chain import ChainReader
from slipstream.core.weights.chain.store import ChainStore
from slipstream.plugins.verl.demo import task
from slipstream.plugins.verl.demo.command import training_command
from slipstream.plugins.verl.demo.model import cached_model
from slipstream.plugins.verl.demo.runner import RunResult, TrainingError, run_training

pytestmark = [pytest.mark.run, pytest.mark.timeout(1500)]
STEPS = 3


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[RunResult, list[dict[str, Any]]]]:
    folder = tmp_path_factory.mktemp("runs")
    train_file = task.write_parquet(task.problems(512, seed=1), folder / "train.parquet")

    def run(
        name: str, *overrides: str, steps: int = STEPS, modules: str = "", **settings: Any
    ) -> tuple[RunResult, list[dict[str, Any]]]:
        events = folder / f"{name}.jsonl"
        command = training_command(
            model=cached_model(),
            train_file=train_file,
            folder=folder / name,
            steps=steps,
            overrides=[*overrides, *([f"slipstream.events={events}"] if "+slipstream" in " ".join(overrides) else [])],
            **settings,
        )
        if modules:
            command.env["VERL_USE_EXTERNAL_MODULES"] += f",{modules}"
            command.env["PYTHONPATH"] = str(Path(__file__).parents[2] / "support")
        result = run_training(command, timeout=1200)
        return result, _syncs(events)

    return run


def _syncs(events: Path) -> list[dict[str, Any]]:
    lines = events.read_text().splitlines() if events.exists() else []
    return [event for event in map(json.loads, lines) if event["kind"] == "weight_sync"]


def test_rollouts_are_the_same_token_for_token_and_training_helps(train):
    """fp32, same seed, the same command with and without the override.

    The bucket of verl's own transfer is made too small for the tied embedding, which hangs verl's dense path for ever;
    with the override nothing depends on it.
    """
    native, _ = train("native", dtype="float32")
    ours, syncs = train(
        "slipstream",
        "+slipstream=sync",
        "slipstream.weight_sync.audit_every=11",  # a dense load; before it, only deltas wrote what generates
        dtype="float32",
        bucket_megabytes=1,
        steps=10,
    )
    for step in range(1, STEPS + 1):
        rollouts = native.rollouts(step)
        assert ours.rollouts(step) == rollouts
        assert len({(rollout.prompt, rollout.response) for rollout in rollouts}) > 16, "samples of a group differ"
    assert len(syncs) == 11
    assert [event["audited_tensors"] > 0 for event in syncs] == [False] * 10 + [True], (
        "equal to a dense load at the end"
    )
    assert [event["seeded_workers"] for event in syncs] == [1] + [0] * 10
    assert mean(ours.rewards[-3:]) > mean(ours.rewards[:2]) + 0.1
    metrics = ours.steps[-1].values
    assert metrics["slipstream/weight_sync/version"] == 11
    assert not undescribed(metrics)
    assert 0 < metrics["slipstream/weight_sync/changed_share"] <= 1


def test_drafts_change_no_response(train):
    """fp32, one choice a token, so that responses do not depend on how random numbers are used.

    verl #4526: settings of speculation that do not reach the engine.
    """
    greedy = "actor_rollout_ref.rollout.top_k=1"
    native, _ = train("undrafted", greedy, dtype="float32", steps=2)
    ours, _ = train("drafted", greedy, "+slipstream=rollout", dtype="float32", steps=2)
    for step in (1, 2):
        assert ours.rollouts(step) == native.rollouts(step)
    metrics = ours.steps[-1].values
    assert metrics["slipstream/drafter/accepted"] > 0
    assert not undescribed(metrics)
    assert 0 < metrics["slipstream/drafter/acceptance"] <= 1
    assert metrics["slipstream/drafter/tokens_per_step"] > 1
    assert metrics["slipstream/drafter/history_tokens"] > 0


def test_the_disaggregated_trainer_syncs_its_own_engine(train):
    """verl's `separate_async`: a hybrid replica beside the trainer, a standalone one behind the checkpoint engine.

    The frames take Ray's object store. Both replicas draft, from what either of them wrote.
    """
    ours, syncs = train(
        "separate",
        "+slipstream=full",
        "slipstream.weight_sync.audit_every=1",
        "slipstream.weight_sync.transport=ray",
        dtype="bfloat16",
        trainer_mode="separate_async",
        rollout_gpus=1,
    )
    assert len(ours.steps) == STEPS
    assert sum(step.values["slipstream/drafter/fed"] for step in ours.steps) > 0
    assert ours.steps[-1].values["slipstream/drafter/accepted"] > 0
    standalone = [event for event in syncs if event["run"] == syncs[0]["run"]]
    assert [event["target"] for event in standalone] == list(range(1, STEPS + 2))
    assert all(event["audited_tensors"] > 0 for event in syncs)
    assert all(event["payload_bytes"] < event["dense_bytes"] / 2 for event in standalone[1:])
    history = read_run(ours.log.parent.with_suffix(".jsonl"))
    numbers = list(range(1, STEPS + 1))
    for records in (history.steps, history.drafting, history.routing):
        assert [record.step for record in records] == numbers
    assert {stage.name for stage in history.stages} >= {"gen", "old_log_prob", "update_actor", "update_weights"}
    assert {stage.step for stage in history.stages} >= set(numbers)
    assert history.unfinished == []
    assert history.started is not None
    assert history.started.settings["router"]["mode"] == "cache_aware"
    for delta in history.deltas:
        assert sum(changed for changed, _ in delta.layers.values()) == delta.changed_elements
        assert any(name.startswith("model.layers.1") for name in delta.layers)


def test_two_trainer_ranks_feed_two_tensor_parallel_workers(train):
    """FSDP over two ranks, each sending the shards it holds to both workers of a TP 2 engine, as one update.

    Each rank broadcasts in a process group of its own.
    """
    ours, syncs = train(
        "sharded",
        "+slipstream=sync",
        "slipstream.weight_sync.transport=torch_distributed",
        "slipstream.weight_sync.audit_every=1",
        dtype="bfloat16",
        trainer_gpus=2,
        tensor_parallel=2,
    )
    assert len(ours.steps) == STEPS
    assert [event["target"] for event in syncs] == list(range(1, STEPS + 2))
    assert [event["seeded_workers"] for event in syncs] == [2] + [0] * STEPS
    assert all(event["audited_tensors"] > 0 for event in syncs)
    assert all(event["changed_elements"] < event["total_elements"] / 4 for event in syncs[1:])
    # Both ranks together send the seed once, in bf16, half of it to each worker; gathering would send it twice.
    assert syncs[0]["payload_bytes"] < 0.3 * syncs[0]["dense_bytes"]


LORA = (
    "actor_rollout_ref.model.lora_rank=8",
    "actor_rollout_ref.model.lora_alpha=16",
    "actor_rollout_ref.model.target_modules=all-linear",
)


def test_adapters_travel_alone(train):
    """verl #7495 and vLLM #48297: the weights under an adapter are sent once, then nothing but the adapter.

    The engine's own probabilities of what it generated are those of the trainer, so it computes with the adapter.
    """
    ours, syncs = train("adapter", "+slipstream=sync", *LORA, dtype="float32")
    base, adapter = [
        [event for event in syncs if event["run"] == run] for run in dict.fromkeys(e["run"] for e in syncs)
    ]
    assert [event["target"] for event in base] == [1], "seeded, never sent again"
    assert [event["target"] for event in adapter] == list(range(1, STEPS + 2))
    assert [event["seeded_workers"] for event in adapter] == [1] + [0] * STEPS
    assert {event["tensors"] for event in adapter} == {28}
    assert all(event["changed_elements"] > 0 for event in adapter[1:]), "an update that changes nothing is a fault"
    assert all(event["payload_bytes"] < base[0]["payload_bytes"] / 10 for event in adapter)
    assert all(event["unverified_tensors"] == 0 for event in syncs)
    assert all(step.values["training/rollout_probs_diff_max"] < 1e-4 for step in ours.steps)
    assert len({step.values["slipstream/weight_sync/changed_share"] for step in ours.steps}) > 1


def test_merged_adapters_are_deltas_of_full_weights_and_not_gathered(train):
    """Two ranks merge what each holds and send it; what no adapter touches does not change."""
    ours, syncs = train(
        "merged",
        "+slipstream=sync",
        "slipstream.weight_sync.audit_every=1",
        *LORA,
        "++actor_rollout_ref.model.lora.merge=true",
        dtype="bfloat16",
        trainer_gpus=2,
        tensor_parallel=2,
    )
    assert [event["target"] for event in syncs] == list(range(1, STEPS + 2))
    assert [event["seeded_workers"] for event in syncs] == [2] + [0] * STEPS
    assert all(event["audited_tensors"] > 0 for event in syncs)
    assert all(0 < event["changed_elements"] < event["total_elements"] / 4 for event in syncs[1:])
    # As for full training: the shards of both ranks together are the model once.
    assert syncs[0]["payload_bytes"] < 0.6 * syncs[0]["dense_bytes"]
    assert all(step.values["training/rollout_probs_diff_max"] < 0.2 for step in ours.steps)


def test_the_asynchronous_colocated_trainer_syncs_and_writes_a_chain(train, tmp_path):
    """verl's `colocate_async`: requests are aborted before a sync and go on after it.

    Every version is also written as files, for which FSDP2's two ranks gather. The frames lie in shared memory.
    """
    chain = tmp_path / "chain"
    ours, syncs = train(
        "colocated",
        "+slipstream=sync",
        "slipstream.weight_sync.audit_every=1",
        "slipstream.weight_sync.transport=shared_memory",
        f"slipstream.weight_sync.chain={chain}",
        dtype="bfloat16",
        trainer_mode="colocate_async",
        trainer_gpus=2,
        tensor_parallel=2,
    )
    assert len(ours.steps) == STEPS
    assert [event["target"] for event in syncs] == list(range(1, STEPS + 2))
    assert [event["seeded_workers"] for event in syncs] == [1] + [0] * STEPS
    assert all(event["audited_tensors"] > 0 for event in syncs)
    names = {name for name in ours.steps[-1].values if name.startswith("slipstream/weight_sync/")}
    assert names >= {f"slipstream/weight_sync/{name}" for name in METRICS}
    log = ours.log.read_text()
    assert "weights are gathered before they are sent: slipstream.weight_sync.chain" in log
    assert "cannot use transport" not in log
    assert ours.steps[-1].values["slipstream/weight_sync/chain_failures"] == 0
    head = ChainStore(str(chain)).head()
    assert head is not None
    assert head.version >= STEPS, "the last one may still have been under way when Ray ended the trainer"
    specs = ChainStore(str(chain)).table(head.table).specs
    engine = TensorEngine({spec.name: torch.zeros(spec.shape, dtype=spec.torch_dtype) for spec in specs})
    assert ChainReader(str(chain), engine).update() == head.version, "each step ends with equal fingerprints"
    assert all(tensor.any() for tensor in engine.tensors.values() if tensor.dim() > 1)


METRICS = (
    *("version", "seeded_workers", "level", "changed_share", "payload_mbytes", "dense_mbytes", "unverified_tensors"),
    *("seconds", "stage_seconds", "deliver_seconds", "audit_seconds"),
)


def test_an_engine_that_dies_in_a_sync_ends_the_run(train):
    """The process of the worker is killed while it writes the first delta: an error that says so, not a hang."""
    start = time.monotonic()
    with pytest.raises(TrainingError) as raised:
        train(
            "dying",
            "+slipstream=sync",
            "slipstream.weight_sync.timeout_seconds=30",
            dtype="bfloat16",
            modules="dying_engine",
        )
    assert "training failed with exit code" in str(raised.value), "by itself, before the time limit of the run"
    assert time.monotonic() - start < 600
    own = [line for line in str(raised.value).splitlines() if not line.startswith("(")]
    said = re.compile(r"(EngineFailedError|SyncTimeoutError): .*if one of .* died, .*log above")  # who notices first
    assert any(said.search(line) for line in own), str(raised.value)


def test_an_engine_that_fails_ends_the_run_with_its_own_error(train):
    """Not a hang: the trainer raises what the engine raised, in the middle of the first delta."""
    with pytest.raises(TrainingError) as raised:
        train(
            "broken",
            "+slipstream=sync",
            "slipstream.weight_sync.timeout_seconds=60",
            dtype="bfloat16",
            modules="broken_engine",
        )
    # Ray repeats a worker's log with its pid in front; this is what the driver itself ended with.
    own = [line for line in str(raised.value).splitlines() if not line.startswith("(")]
    assert any("EngineFailedError" in line and "broken on purpose" in line for line in own)
    assert any("WorkerDict.actor_rollout_update_weights" in line for line in own), "raised in the trainer"
