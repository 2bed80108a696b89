"""Megatron-Core ranks on a CPU over gloo, a Qwen2 of mbridge's naming, and what slipstream makes of their export."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from fsdp_world import follow_verl

HEADS, GROUPS, HIDDEN, FFN, VOCAB, LAYERS = 4, 2, 32, 48, 90, 2


def build(tensor_parallel: int, pipeline_parallel: int) -> tuple[Any, torch.nn.Module]:
    """(mbridge's bridge, this rank's stage of the model)."""
    from mbridge.models.qwen2 import Qwen2Bridge
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig
    from transformers import Qwen2Config

    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment]  # where Megatron allocates
    parallel_state.initialize_model_parallel(tensor_parallel, pipeline_parallel)
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_query_groups=GROUPS,
        ffn_hidden_size=FFN,
        use_cpu_initialization=True,
        gated_linear_unit=True,
        add_bias_linear=False,
        add_qkv_bias=True,
        normalization="RMSNorm",
        tensor_model_parallel_size=tensor_parallel,
        pipeline_model_parallel_size=pipeline_parallel,
        pipeline_dtype=torch.float32,
    )
    torch.manual_seed(5)
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=96,  # padded: the checkpoint has 90 rows
        max_sequence_length=64,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
    )
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter)
    hf = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        tie_word_embeddings=False,
    )

    class Bridge(Qwen2Bridge):
        """Layers without Transformer Engine call their norms otherwise."""

        def _weight_name_mapping_mcore_to_hf(self, name: str) -> list[str]:
            for norm, theirs in (("pre_mlp_layernorm", "post_attention_layernorm"), ("input_layernorm",) * 2):
                if norm in name:
                    return [f"model.layers.{name.split('.')[2]}.{theirs}.weight"]
            return super()._weight_name_mapping_mcore_to_hf(name)

    return Bridge(hf, dtype=torch.float32), model


def rank_main(rank: int, folder: str, tensor_parallel: int, pipeline_parallel: int) -> None:
    """Entry point of a spawned rank."""
    torch.set_num_threads(1)
    size = tensor_parallel * pipeline_parallel
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    try:
        bridge, model = build(tensor_parallel, pipeline_parallel)
        # What verl's engine is to slipstream: its own module imports Transformer Engine.
        engine = SimpleNamespace(bridge=bridge, vanilla_bridge=True, module=[model])
        engine.get_per_tensor_param = lambda **_: (bridge.export_weights([model]), None)
        export = engine.bridge.export_weights
        follow_verl(rank, Path(folder), engine, lambda: export([model]), model, _on_all_tensor_parallel_ranks)
    except Exception:
        (Path(folder) / f"error{rank}").write_text(traceback.format_exc())
    dist.barrier()
    dist.destroy_process_group()


def _on_all_tensor_parallel_ranks(parameter: torch.nn.Parameter) -> bool:
    return not getattr(parameter, "tensor_model_parallel", False)
