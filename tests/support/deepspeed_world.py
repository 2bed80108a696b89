"""Two ranks of a DeepSpeed engine over gloo, and what an engine holds after they published.

The policy's own code gathers and publishes; only Ray, the engines' actors and CUDA are not there.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openrlhf_cpu
import torch
import torch.distributed as dist
from fsdp_world import dense_model
from trainer_world import RANKS, follow

STAGES = (1, 2, 3)
FROZEN = ("model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight")


def deepspeed_engine(stage: int) -> Any:
    """A Qwen2 in bf16 as OpenRLHF has DeepSpeed hold it, its optimizer torch's."""
    import deepspeed

    config = {
        "train_batch_size": RANKS,
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 100},
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "eps": 1e-2, "torch_adam": True}},
        "steps_per_print": 1000,
    }
    model = dense_model().to(torch.bfloat16)
    for name in FROZEN:
        model.get_parameter(name).requires_grad = False
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return deepspeed.initialize(model=model, model_parameters=trained, config=config)[0]


def work(rank: int, folder: Path, stage: int) -> None:
    """One rank of one case."""
    from slipstream.plugins.openrlhf.policy import SyncedTrainer
    from slipstream.plugins.openrlhf.shards import DeepSpeedShards

    engine = deepspeed_engine(stage)
    trainer = SyncedTrainer.__new__(SyncedTrainer)
    trainer.actor = SimpleNamespace(model=engine)
    trainer.strategy = SimpleNamespace(
        args=SimpleNamespace(ds=SimpleNamespace(tensor_parallel_size=1, zero_stage=stage))
    )

    def train(step: int) -> None:
        tokens = torch.randint(0, 97, (1, 16), generator=torch.Generator().manual_seed(10 * step + rank))
        engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
        engine.step()

    source = DeepSpeedShards(trainer._parameters(), split=False)
    follow(rank, folder, source, trainer._gathered, train, frozen=FROZEN)


def rank_main(rank: int, folder: str) -> None:
    """Entry point of a spawned rank."""
    openrlhf_cpu.install()
    import deepspeed

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="localhost", RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    deepspeed.init_distributed(dist_backend="gloo")
    for stage in STAGES:
        place = Path(folder) / str(stage)
        place.mkdir(exist_ok=True)
        try:
            work(rank, place, stage)
        except Exception:
            (place / f"error{rank}").write_text(traceback.format_exc())
        dist.barrier()
    dist.destroy_process_group()
