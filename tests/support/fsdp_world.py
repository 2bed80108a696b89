"""Two trainer ranks with verl's own FSDP engine code over gloo, and what an engine holds after they published."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from trainer_world import RANKS, follow

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
    follow_verl(rank, folder, engine, lambda: engine.get_per_tensor_param(base_sync_done=True)[0], engine.module)


def follow_verl(
    rank: int,
    folder: Path,
    engine: Any,
    gather: Callable[[], Any],
    module: torch.nn.Module,
    replicated: Callable[[torch.nn.Parameter], bool] = lambda parameter: False,
) -> None:
    """`follow` verl's `engine`, which trains `module`.

    Args:
        gather: its own export: (name, whole tensor).
        replicated: parameters that all ranks hold whole, and train alike.
    """
    from slipstream.plugins.verl.shards import shard_source

    source = shard_source(engine)
    assert source is not None
    found: dict[str, Any] = {}

    def gather_beside() -> Any:
        if not found:  # the source is in use: verl's export has nothing to do, but here it is what is compared with
            found["spared"] = list(engine.get_per_tensor_param()[0]) == []
            source.in_use = False
        return gather()

    follow(
        rank,
        folder,
        source,
        gather_beside,
        lambda step: train(module, step, replicated),
        frozen=[name for name, parameter in module.named_parameters() if not parameter.requires_grad],
        dtype_of=lambda name: torch.float32 if name.endswith(ROUTER) else torch.bfloat16,
        more=found,
    )


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
