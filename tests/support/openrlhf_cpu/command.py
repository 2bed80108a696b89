"""The command line of a run: plain OpenRLHF, plus whatever arguments are under test."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from slipstream.plugins.verl.demo import task

SUPPORT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent


def write_prompts(items: Sequence[task.Problem], path: Path) -> Path:
    """OpenRLHF's data set: prompts already in the chat template."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"input": f"<|im_start|>u{item.number}<|im_end|>\n<|im_start|>a", "label": item.solution} for item in items]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def arguments(
    *,
    model: Path,
    prompts: Path,
    steps: int,
    zero_stage: int = 2,
    ranks: int = 1,
    engines: int = 1,
    prompts_per_step: int = 8,
    samples_per_prompt: int = 4,
    learning_rate: float = 1e-3,
    estimator: str = "reinforce_baseline",
    reward: str = "reward.py",
    more: Sequence[str] = (),
) -> list[str]:
    """Arguments of `openrlhf.cli.train_ppo_ray`."""
    samples = prompts_per_step * samples_per_prompt
    settings = {
        "actor.model_name_or_path": model,
        "actor.num_nodes": 1,
        "actor.num_gpus_per_node": ranks,
        "actor.adam.lr": learning_rate,
        "actor.adam.eps": 3e-2,
        "actor.lr_scheduler": "constant",
        "actor.lr_warmup_ratio": 0,
        "vllm.num_engines": engines,
        "vllm.tensor_parallel_size": 1,
        "vllm.gpu_memory_utilization": 0.1,
        "vllm.sync_backend": "gloo",
        "ds.zero_stage": zero_stage,
        "ds.attn_implementation": "sdpa",
        "ds.param_dtype": "bf16",
        "algo.kl.init_coef": 0,
        "algo.advantage.estimator": estimator,
        "reward.remote_url": HERE / reward,
        "data.prompt_dataset": prompts,
        "data.input_key": "input",
        "data.label_key": "label",
        "data.max_len": 64,
        "data.max_samples": prompts_per_step * steps,
        "rollout.max_new_tokens": 8,
        "rollout.batch_size": prompts_per_step,
        "rollout.micro_batch_size": samples // ranks,
        "rollout.n_samples_per_prompt": samples_per_prompt,
        "train.batch_size": samples,
        "train.micro_batch_size": samples // ranks,
        "train.num_episodes": 1,
        "train.max_epochs": 1,
        "train.seed": 1,
        "ckpt.output_dir": "out",
        "ckpt.path": "checkpoints",
    }
    return [part for name, value in settings.items() for part in (f"--{name}", str(value))] + [
        "--vllm.enforce_eager",
        *more,
    ]


def environment(folder: Path, gpus: int, dtype: str = "float32") -> dict[str, str]:
    """Variables to set on top of the caller's."""
    return {
        "PYTHONPATH": os.pathsep.join(map(str, (SUPPORT, HERE / "stand_ins"))),
        "PYTHONHASHSEED": "0",
        "OPENRLHF_CPU_FOLDER": str(folder),
        "OPENRLHF_CPU_DTYPE": dtype,
        "OPENRLHF_CPU_GPUS": str(gpus),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus))),
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(folder / "torch_extensions"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_worker_niceness": "0",
        "RAY_worker_register_timeout_seconds": "900",
        "RAY_memory_usage_threshold": "0.99",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": "1800",
    }


def argv(arguments: Sequence[str], python: str = sys.executable) -> list[str]:
    """The command."""
    return [python, "-m", "openrlhf_cpu", *arguments]
