"""Real verl with real vLLM on this machine: the same seed gives the same run, and training helps."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from statistics import mean

import pytest

from slipstream.plugins.verl.demo import task
from slipstream.plugins.verl.demo.command import training_command
from slipstream.plugins.verl.demo.model import cached_model
from slipstream.plugins.verl.demo.runner import RunResult, run_training

pytestmark = [
    pytest.mark.run,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(find_spec("verl") is None or find_spec("vllm") is None, reason="needs verl and vLLM"),
]


def train(folder: Path, steps: int, seed: int) -> RunResult:
    train_file = task.write_parquet(task.problems(512, seed=1), folder / "train.parquet")
    command = training_command(
        model=cached_model(), train_file=train_file, folder=folder / "run", steps=steps, seed=seed, dtype="float32"
    )
    return run_training(command, timeout=1200)


def test_reward_rises_and_the_same_seed_repeats_every_token(tmp_path: Path) -> None:
    long = train(tmp_path / "a", steps=12, seed=1)
    assert mean(long.rewards[-4:]) > mean(long.rewards[:2]) + 0.1
    assert all(step.values["training/rollout_probs_diff_max"] < 1e-4 for step in long.steps), "weights arrive"

    again = train(tmp_path / "b", steps=3, seed=1)
    for step in (1, 2, 3):
        rollouts = long.rollouts(step)
        assert again.rollouts(step) == rollouts
        assert len(rollouts) == 128
        assert len({(rollout.prompt, rollout.response) for rollout in rollouts}) > 16, "samples of a group differ"
    assert again.rewards == long.rewards[:3]
