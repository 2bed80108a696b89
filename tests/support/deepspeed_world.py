"""Two ranks of a DeepSpeed engine over gloo, and what an engine holds after they published.

The policy's own code gathers and publishes; only Ray, the engines' actors and CUDA are not there.
"""

from __future__ import annotations

import asyncio
import json
import os
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openrlhf_cpu
import torch
import torch.distributed as dist
from fsdp_world import bits, calling, dense_model, subscriber
from plain_engine import PlainEngine

RANKS = 2
SYNCS = 3
STAGES = (1, 2, 3)


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
    return deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)[0]


def work(rank: int, folder: Path, stage: int) -> None:
    """Train and publish; rank 0 has an engine and compares it with what DeepSpeed gathers."""
    from slipstream.core.config import SLIPSTREAM_NODE, parse_config, to_json
    from slipstream.core.weights.publishing import RunPublisher, all_ranks
    from slipstream.plugins.openrlhf.policy import SyncedTrainer
    from slipstream.plugins.openrlhf.shards import DeepSpeedShards

    node = {"mode": "delta", "timeout_seconds": 60, "verify_every": 1}
    os.environ[SLIPSTREAM_NODE] = to_json(parse_config({"weight_sync": node, "events": str(folder / "events")}))
    engine = deepspeed_engine(stage)
    trainer = SyncedTrainer.__new__(SyncedTrainer)
    trainer.actor = SimpleNamespace(model=engine)
    trainer.strategy = SimpleNamespace(
        args=SimpleNamespace(ds=SimpleNamespace(tensor_parallel_size=1, zero_stage=stage))
    )
    source = DeepSpeedShards(trainer._parameters(), split=False)
    publisher = RunPublisher(source)
    assert publisher.shards is source, source.obstacle()
    facts: dict[str, Any] = {"differ": [], "changed": [], "held": sum(len(t) for _, t in source.tensors())}
    inference: PlainEngine | None = None
    subscribe = None
    before: dict[str, torch.Tensor] = {}
    for step in range(SYNCS):
        if step:
            tokens = torch.randint(0, 97, (1, 16), generator=torch.Generator().manual_seed(10 * step + rank))
            engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
            engine.step()
        gathered = {name: tensor.clone() for name, tensor in trainer._gathered()}
        if inference is None:
            inference = PlainEngine(
                {name: tuple(tensor.shape) for name, tensor in gathered.items()},
                dict.fromkeys(gathered, torch.bfloat16),
            )
            subscribe = subscriber(inference)
        channel, addresses = publisher.shared(f"ipc://{folder}/rank{rank}", same_host=True)
        call = calling(subscribe if rank == 0 else None, addresses)
        asyncio.run(publisher.publish((), channel, 1, call, step, all_ranks, log=rank == 0))
        if rank == 0:
            wanted = {name: bits(tensor) for name, tensor in gathered.items()}
            have = {name: bits(tensor) for name, tensor in inference.tensors.items()}
            facts["differ"].append([name for name in wanted if not torch.equal(wanted[name], have[name])])
            facts["changed"].append(sum(int((wanted[n] != before[n]).sum()) for n in wanted) if before else 0)
            before = wanted
    facts["elements"] = sum(tensor.numel() for tensor in before.values())
    facts["loads"] = inference.loads if inference is not None else None
    (folder / f"facts{rank}.json").write_text(json.dumps(facts))


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
