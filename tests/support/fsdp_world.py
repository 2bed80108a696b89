"""Two trainer ranks with verl's own FSDP engine code over gloo, and what an engine holds after they published."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from plain_engine import PlainEngine

from slipstream.triton_kernels import as_bits

RANKS = 2
SYNCS = 3
ROUTER = "mlp.gate.weight"
FROZEN = ("embed_tokens", "lm_head")


def moe_model(tied: bool = False) -> torch.nn.Module:
    """Qwen3-MoE in bf16 as the trainer keeps it: stacked experts, an fp32 router, frozen embeddings."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=97,
        hidden_size=40,
        intermediate_size=48,
        moe_intermediate_size=24,
        num_experts=5,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=10,
        tie_word_embeddings=tied,
    )
    model = Qwen3MoeForCausalLM(config).to(torch.bfloat16)
    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module.float()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not any(part in name for part in FROZEN)
    return model


def dense_model() -> torch.nn.Module:
    """A Qwen2 with biases and a tied head, in fp32."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=97,
        hidden_size=40,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config)


def lora_model() -> torch.nn.Module:
    """The same with adapters that do something."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(dense_model(), LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return model


def fsdp2(model: torch.nn.Module) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    layers = (model.get_base_model() if hasattr(model, "peft_config") else model).model.layers
    for layer in layers:
        if hasattr(layer.mlp, "gate"):
            fully_shard(layer.mlp.gate, mesh=mesh)  # FSDP2 takes one dtype a group
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fsdp1(use_orig_params: bool) -> Callable[[torch.nn.Module], torch.nn.Module]:
    def wrap(model: torch.nn.Module) -> torch.nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardedStateDictConfig, StateDictType
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

        wrapped = FullyShardedDataParallel(
            model,
            device_mesh=init_device_mesh("cpu", (RANKS,)),
            auto_wrap_policy=ModuleWrapPolicy({Qwen2DecoderLayer}),
            device_id=torch.device("cpu"),
            use_orig_params=use_orig_params,
        )
        FullyShardedDataParallel.set_state_dict_type(
            wrapped, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()
        )
        return wrapped

    return wrap


CASES: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[torch.nn.Module], torch.nn.Module]]] = {
    "moe_fsdp2": (moe_model, fsdp2),
    "dense_fsdp2": (dense_model, fsdp2),
    "lora_fsdp2": (lora_model, fsdp2),
    "dense_fsdp1": (dense_model, fsdp1(False)),
    "dense_fsdp1_orig": (dense_model, fsdp1(True)),
}


def verl_engine(module: torch.nn.Module) -> Any:
    """verl's FSDP engine around a module that is wrapped already."""
    from verl.workers.engine.fsdp import transformer_impl
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    transformer_impl.load_fsdp_model_to_gpu = lambda module: None  # it asks torch for the device "cpu:cpu"
    engine = FSDPEngine.__new__(FSDPEngine)
    engine.module = module
    config = getattr(module, "_fsdp_wrapped_module", module).config
    config = config if hasattr(config, "model_type") else config["default"]
    engine.model_config = SimpleNamespace(lora={"merge": True}, hf_config=config)
    engine._uses_fsdp2_cpu_offload_policy = engine._is_offload_param = engine._qat_enabled = False
    return engine


def work(rank: int, folder: Path, case: str) -> None:
    """One rank of one case."""
    build, wrap = CASES[case]
    engine = verl_engine(wrap(build()))
    follow(rank, folder, engine, lambda: engine.get_per_tensor_param(base_sync_done=True)[0], engine.module)


def follow(
    rank: int,
    folder: Path,
    engine: Any,
    gather: Callable[[], Any],
    module: torch.nn.Module,
    replicated: Callable[[torch.nn.Parameter], bool] = lambda parameter: False,
) -> None:
    """Train a little and publish, three times; rank 0 has an engine and compares it with what verl gathers.

    Args:
        engine: verl's training engine.
        gather: its own export: (name, whole tensor).
        module: what is trained.
        replicated: parameters that all ranks hold whole, and train alike.
    """
    from slipstream.core.config import SLIPSTREAM_NODE, parse_config, to_json
    from slipstream.core.weights.publishing import RunPublisher, all_ranks
    from slipstream.plugins.verl.shards import shard_source

    sync = {"mode": "delta", "timeout_seconds": 60, "verify_every": 1}
    os.environ[SLIPSTREAM_NODE] = to_json(parse_config({"weight_sync": sync, "events": str(folder / "events")}))
    source = shard_source(engine)
    assert source is not None
    publisher = RunPublisher(source)
    assert publisher.shards is source, source.obstacle()
    spared = list(engine.get_per_tensor_param()[0]) == []
    source.in_use = False  # so that verl gathers what is compared with
    facts: dict[str, Any] = {"differ": [], "changed": [], "spared": spared}
    inference: PlainEngine | None = None
    subscribe: Callable[[list[str]], None] | None = None
    before: dict[str, torch.Tensor] = {}
    for step in range(SYNCS):
        if step:
            train(module, step, replicated)
        gathered = {name: tensor.clone() for name, tensor in gather()}
        if inference is None:
            inference = PlainEngine(
                {name: tuple(tensor.shape) for name, tensor in gathered.items()},
                {name: torch.float32 if name.endswith(ROUTER) else torch.bfloat16 for name in gathered},
            )
            subscribe = subscriber(inference)
        channel, addresses = publisher.shared(f"ipc://{folder}/rank{rank}", same_host=True)
        call = calling(subscribe if rank == 0 else None, addresses)
        metrics = asyncio.run(publisher.publish((), channel, 1, call, step, all_ranks, log=rank == 0))
        if rank == 0:
            wanted = {name: bits(t.to(inference.tensors[name].dtype)) for name, t in gathered.items()}
            have = {name: bits(t) for name, t in inference.tensors.items()}
            facts["differ"].append([name for name in wanted if not torch.equal(wanted[name], have[name])])
            facts["changed"].append({n: int((wanted[n] != before[n]).sum()) for n in wanted} if before else {})
            facts["metrics"] = metrics
            before = wanted
    if rank == 0:
        facts["loads"] = inference.loads if inference is not None else None
        facts["dtypes"] = {n: str(t.dtype) for n, t in gathered.items()}
        facts["beyond_bf16"] = {n: not torch.equal(t.bfloat16().float(), t.float()) for n, t in gathered.items()}
        (folder / "facts.json").write_text(json.dumps(facts))


def calling(subscribe: Callable[[list[str]], None] | None, addresses: list[str]) -> Callable[[], Any]:
    async def call() -> None:
        if subscribe is not None:
            await asyncio.to_thread(subscribe, addresses)

    return call


def subscriber(engine: PlainEngine) -> Callable[[list[str]], None]:
    from slipstream.core.weights import Connections, Subscriber

    held, connections = Subscriber(engine, "engine"), Connections()

    def sync(addresses: list[str]) -> None:
        with connections.joined(addresses, 60.0) as channels:
            held.sync(channels, 60.0)

    return sync


@torch.no_grad()
def train(module: torch.nn.Module, step: int, replicated: Callable[[torch.nn.Parameter], bool]) -> None:
    """Move about a hundredth of what this rank holds of every trainable parameter, by a part in a hundred."""
    own, common = (torch.Generator().manual_seed(100 * step + rank) for rank in (dist.get_rank(), 99))
    lora = any("lora_" in name for name, _ in module.named_parameters())
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and (not lora or "lora_" in name):
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter.data
            moved = torch.rand(local.shape, generator=common if replicated(parameter) else own) < 0.01
            local[moved] = local[moved] * 1.01 + 1e-3


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return as_bits(tensor.contiguous())


def rank_main(rank: int, folder: str, cases: list[str]) -> None:
    """Entry point of a spawned rank."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="localhost", RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    for case in cases:
        place = Path(folder) / case
        place.mkdir(exist_ok=True)
        try:
            work(rank, place, case)
        except Exception:
            import traceback

            (place / f"error{rank}").write_text(traceback.format_exc())
            dist.barrier()
            continue
        dist.barrier()
    dist.destroy_process_group()
