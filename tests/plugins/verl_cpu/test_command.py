"""The demo's command line against verl's own configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream.plugins.verl.demo.command import TrainerMode, training_command, training_overrides

pytest.importorskip("verl")


def compose(overrides: list[str]) -> Any:
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    GlobalHydra.instance().clear()
    with initialize_config_module("verl.trainer.config", version_base=None):
        # `hydra.run.dir` exists only in the configuration of an application.
        config = compose("ppo_trainer", [item for item in overrides if not item.startswith("hydra.")])
    OmegaConf.resolve(config)
    return config


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_composes_with_verl(tmp_path: Path, mode: TrainerMode) -> None:
    config = compose(
        training_overrides(
            model=tmp_path / "model",
            train_file=tmp_path / "train.parquet",
            folder=tmp_path,
            steps=5,
            seed=7,
            dtype="bfloat16",
            trainer_mode=mode,
            rollout_gpus=1 if mode == "separate_async" else 0,
        )
    )
    rollout = config.actor_rollout_ref.rollout
    assert config.trainer.total_training_steps == 5
    assert config.trainer.v1.trainer_mode == mode
    assert (rollout.name, rollout.dtype, rollout.load_format, rollout.seed) == ("vllm", "bfloat16", "dummy", 7)
    assert config.data.seed == 7
    assert config.ray_kwargs.ray_init.num_gpus == (2 if mode == "separate_async" else 1)


def test_rollout_section_is_a_valid_dataclass(tmp_path: Path) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    config = compose(training_overrides(model=tmp_path, train_file=tmp_path / "t.parquet", folder=tmp_path, steps=1))
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert rollout.enable_sleep_mode is False
    assert rollout.agent.default_agent_loop == "seeded_single_turn_agent"


def test_overrides_under_test_come_last_and_change_nothing_else(tmp_path: Path) -> None:
    plain = training_command(model=tmp_path, train_file=tmp_path / "t", folder=tmp_path, steps=1)
    other = training_command(
        model=tmp_path, train_file=tmp_path / "t", folder=tmp_path, steps=1, overrides=["+slipstream=sync"]
    )
    assert other.argv == (*plain.argv, "+slipstream=sync")
    assert other.env == plain.env
    assert not any("slipstream=" in item for item in plain.argv)


def test_batches_divide_among_trainer_ranks(tmp_path: Path) -> None:
    config = compose(
        training_overrides(
            model=tmp_path,
            train_file=tmp_path / "t",
            folder=tmp_path,
            steps=1,
            trainer_gpus=2,
            tensor_parallel=2,
            prompts_per_step=8,
            samples_per_prompt=4,
        )
    )
    assert config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 16
    assert config.ray_kwargs.ray_init.num_gpus == 2
