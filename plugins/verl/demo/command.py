"""The command line of the demo's training run: plain verl, plus whatever overrides are under test.

:func:`training_command` returns what a user would type. A run without slipstream and a run with it differ in
`overrides` only, for example ``["+slipstream=sync"]``; task, model, seed and everything of the CPU test bed are equal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = ["TrainerMode", "TrainingCommand", "training_command", "training_environment", "training_overrides"]

TrainerMode = Literal["sync", "colocate_async", "separate_async"]

OBJECT_STORE_BYTES = 300_000_000
"""Of Ray, for one run."""

_ROLLOUT = "actor_rollout_ref.rollout"
_ACTOR = "actor_rollout_ref.actor"


@dataclass(frozen=True)
class TrainingCommand:
    """A command to run and where its results will be."""

    argv: tuple[str, ...]
    env: dict[str, str]
    """The variables to set on top of the caller's environment."""
    folder: Path
    steps: int
    metrics_file: Path = field(init=False)
    """verl's metrics, one JSON object per step."""
    rollout_folder: Path = field(init=False)
    """verl's dump of prompts, responses and scores, one file per step."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics_file", self.folder / "metrics.jsonl")
        object.__setattr__(self, "rollout_folder", self.folder / "rollouts")


def training_overrides(
    *,
    model: Path,
    train_file: Path,
    folder: Path,
    steps: int,
    val_file: Path | None = None,
    seed: int = 1,
    dtype: Literal["float32", "bfloat16"] = "float32",
    trainer_gpus: int = 1,
    tensor_parallel: int = 1,
    rollout_gpus: int = 0,
    trainer_mode: TrainerMode = "sync",
    prompts_per_step: int = 16,
    samples_per_prompt: int = 8,
    prompt_length: int = 32,
    response_length: int = 8,
    learning_rate: float = 1e-3,
    adam_epsilon: float = 3e-2,
    bucket_megabytes: int = 64,
    reward_path: str = "pkg://slipstream.plugins.verl.demo.reward",
    shared_cluster: bool = False,
    overrides: Sequence[str] = (),
) -> list[str]:
    """Return the Hydra overrides for ``verl.trainer.main_ppo``.

    Args:
        model: Folder of the model to train.
        train_file: Parquet file with the prompts.
        folder: Where the run writes; one folder per run.
        steps: Training steps.
        val_file: Parquet file verl wants for validation; no validation is run, `train_file` by default.
        seed: Seed of data order and sampling.
        dtype: The rollout engine's weight type. The trainer computes in float32 either way.
        trainer_gpus: Pretended GPUs of the trainer (ranks).
        tensor_parallel: Ranks per rollout engine.
        rollout_gpus: Pretended GPUs for rollout engines of their own (``separate_async`` only).
        trainer_mode: verl's ``trainer.v1.trainer_mode``.
        prompts_per_step: Prompts per training step.
        samples_per_prompt: Responses per prompt.
        prompt_length: Longest prompt, in tokens.
        response_length: Longest response, in tokens.
        learning_rate: Constant learning rate.
        adam_epsilon: Adam's epsilon. The demo has to move in a dozen steps as far as a real run does in thousands.
            With the usual 1e-8 it needs a rate of 5e-5, at which Adam moves every weight by about as much and a third
            of the bf16 weights change in each step. An epsilon well above most gradients keeps updates in proportion
            to the gradient, so that the same progress changes about a tenth.
        bucket_megabytes: Bucket of verl's dense weight transfer; it must hold the whole model in float32, because
            vLLM refuses a tied output head that arrives in another bucket than its embedding.
        reward_path: Module with ``compute_score``.
        shared_cluster: The run joins a Ray cluster that is there already (:mod:`cluster`), instead of starting its own.
        overrides: Appended last, so they win.
    """
    asynchronous = trainer_mode != "sync"
    samples = prompts_per_step * samples_per_prompt
    sampler = "PromptReplayBufferAsync" if asynchronous else "PromptReplayBuffer"
    gpus = trainer_gpus + rollout_gpus
    result = [
        "algorithm.adv_estimator=grpo",
        f"data.train_files={train_file}",
        f"data.val_files={val_file or train_file}",
        f"data.train_batch_size={prompts_per_step}",
        f"data.max_prompt_length={prompt_length}",
        f"data.max_response_length={response_length}",
        "data.dataloader_num_workers=0",
        f"data.seed={seed}",
        f"reward.custom_reward_function.path={reward_path}",
        "reward.num_workers=1",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.use_remove_padding=false",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        f"{_ACTOR}.strategy=fsdp2",
        f"{_ACTOR}.optim.lr={learning_rate}",
        f"{_ACTOR}.optim.override_optimizer_config={{eps:{adam_epsilon}}}",
        f"{_ACTOR}.use_torch_compile=false",
        f"{_ACTOR}.fsdp_config.use_torch_compile=false",
        f"+{_ACTOR}.fsdp_config.mixed_precision.param_dtype=fp32",
        f"+{_ACTOR}.fsdp_config.mixed_precision.reduce_dtype=fp32",
        f"+{_ACTOR}.fsdp_config.mixed_precision.buffer_dtype=fp32",
        f"{_ACTOR}.fsdp_config.seed={seed}",
        f"{_ACTOR}.data_loader_seed={seed}",
        f"{_ACTOR}.ppo_mini_batch_size={prompts_per_step}",
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu={samples // trainer_gpus}",
        f"{_ROLLOUT}.name=vllm",
        f"{_ROLLOUT}.dtype={dtype}",
        f"{_ROLLOUT}.n={samples_per_prompt}",
        f"{_ROLLOUT}.seed={seed}",
        f"{_ROLLOUT}.tensor_model_parallel_size={tensor_parallel}",
        f"{_ROLLOUT}.enforce_eager=true",
        f"{_ROLLOUT}.free_cache_engine=false",
        f"+{_ROLLOUT}.enable_sleep_mode=false",
        f"{_ROLLOUT}.max_model_len={max(256, prompt_length + response_length)}",
        f"{_ROLLOUT}.max_num_seqs={min(samples, 256)}",
        f"{_ROLLOUT}.max_num_batched_tokens=2048",
        f"+{_ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes={256 << 20}",
        f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu={samples // trainer_gpus}",
        f"{_ROLLOUT}.agent.num_workers=1",
        f"{_ROLLOUT}.agent.default_agent_loop=seeded_single_turn_agent",
        f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes={bucket_megabytes}",
        "trainer.device=cpu",
        f"trainer.n_gpus_per_node={trainer_gpus}",
        f"trainer.total_training_steps={steps}",
        "trainer.total_epochs=1000000",
        "trainer.val_before_train=false",
        "trainer.resume_mode=disable",
        "trainer.logger=[console,file]",
        "trainer.project_name=slipstream",
        "trainer.experiment_name=demo",
        f"trainer.default_local_dir={folder / 'checkpoints'}",
        f"trainer.rollout_data_dir={folder / 'rollouts'}",
        f"trainer.v1.trainer_mode={trainer_mode}",
        "trainer.v1.sampler.custom_sampler.path=pkg://slipstream.plugins.verl.cpu.replay_buffer",
        f"trainer.v1.sampler.custom_sampler.name={sampler}",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        f"hydra.run.dir={folder / 'hydra'}",
    ]
    if shared_cluster:
        # Processes of the run have the environment of the cluster, and this.
        variable = "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH"
        result.append(f"{variable}={folder / 'metrics.jsonl'}")
    else:
        # Ray counts what it is told to: bundles of 3 CPUs per trainer rank, and pretended GPUs.
        result += [
            f"ray_kwargs.ray_init.num_cpus={cpus_of(gpus)}",
            f"+ray_kwargs.ray_init.num_gpus={gpus}",
            "+ray_kwargs.ray_init.include_dashboard=false",
            f"+ray_kwargs.ray_init.object_store_memory={OBJECT_STORE_BYTES}",
        ]
    if tensor_parallel == 1:
        # One process less to start; verl's default is a worker process of its own.
        result.append(f"+{_ROLLOUT}.engine_kwargs.vllm.distributed_executor_backend=uni")
    if trainer_mode == "separate_async":
        result += [
            f"{_ROLLOUT}.nnodes=1",
            f"{_ROLLOUT}.n_gpus_per_node={rollout_gpus}",
            "trainer.v1.separate_async.parameter_sync_step=1",
        ]
    return [*result, *overrides]


def cpus_of(gpus: int) -> int:
    """Return the CPUs that Ray is told of, for a run with so many pretended GPUs."""
    return 8 + 4 * gpus


def training_environment(folder: Path, gpus: int = 1, threads: int = 1) -> dict[str, str]:
    """Return the environment variables of a run.

    Args:
        folder: Where the run writes.
        gpus: Pretended GPUs in all; Ray refuses to pretend more than it may see.
        threads: Threads per compute process. One is fastest on two cores, where several processes take turns.
    """
    return {
        "VERL_USE_EXTERNAL_MODULES": "slipstream.plugins.verl.cpu",
        "VERL_PLATFORM": "cpu",
        "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus))),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_worker_niceness": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }


def training_command(
    *,
    model: Path,
    train_file: Path,
    folder: Path,
    steps: int,
    val_file: Path | None = None,
    seed: int = 1,
    dtype: Literal["float32", "bfloat16"] = "float32",
    trainer_gpus: int = 1,
    tensor_parallel: int = 1,
    rollout_gpus: int = 0,
    trainer_mode: TrainerMode = "sync",
    prompts_per_step: int = 16,
    samples_per_prompt: int = 8,
    prompt_length: int = 32,
    response_length: int = 8,
    learning_rate: float = 1e-3,
    adam_epsilon: float = 3e-2,
    bucket_megabytes: int = 64,
    reward_path: str = "pkg://slipstream.plugins.verl.demo.reward",
    shared_cluster: bool = False,
    overrides: Sequence[str] = (),
    threads: int = 1,
    python: str = sys.executable,
) -> TrainingCommand:
    """Return the command for one run; the arguments are those of :func:`training_overrides` and the following.

    Args:
        threads: See :func:`training_environment`.
        python: Interpreter of the environment that has verl and vLLM.
    """
    folder = Path(os.path.abspath(folder))
    arguments = training_overrides(
        model=Path(os.path.abspath(model)),
        train_file=Path(os.path.abspath(train_file)),
        val_file=None if val_file is None else Path(os.path.abspath(val_file)),
        folder=folder,
        steps=steps,
        seed=seed,
        dtype=dtype,
        trainer_gpus=trainer_gpus,
        tensor_parallel=tensor_parallel,
        rollout_gpus=rollout_gpus,
        trainer_mode=trainer_mode,
        prompts_per_step=prompts_per_step,
        samples_per_prompt=samples_per_prompt,
        prompt_length=prompt_length,
        response_length=response_length,
        learning_rate=learning_rate,
        adam_epsilon=adam_epsilon,
        bucket_megabytes=bucket_megabytes,
        reward_path=reward_path,
        shared_cluster=shared_cluster,
        overrides=overrides,
    )
    return TrainingCommand(
        argv=(python, "-m", "verl.trainer.main_ppo", *arguments),
        env=training_environment(folder, trainer_gpus + rollout_gpus, threads),
        folder=folder,
        steps=steps,
    )
