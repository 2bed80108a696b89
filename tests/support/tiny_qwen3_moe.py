"""A tiny Qwen3-MoE checkpoint that real engines load: single experts, a router, an intermediate size that is padded."""

from __future__ import annotations

from pathlib import Path

import torch

VOCAB = 300


def build(tied: bool, seed: int = 0) -> dict[str, torch.Tensor]:
    """fp32 state dict under the names of the checkpoint: one tensor for each expert."""
    from verl.workers.engine.fsdp.utils import unfuse_moe_params

    torch.manual_seed(seed)
    model = _model(tied)
    return {name: tensor.clone() for name, tensor in unfuse_moe_params(model.state_dict().items(), "qwen3_moe")}


def save(weights: dict[str, torch.Tensor], folder: Path, tied: bool, dtype: torch.dtype) -> Path:
    """Write `weights` as a checkpoint folder in `dtype`."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = _config(tied)
    config.architectures, config.dtype = ["Qwen3MoeForCausalLM"], dtype
    config.save_pretrained(folder)
    stored = {n: t.to(dtype).contiguous() for n, t in weights.items() if not (tied and n == "lm_head.weight")}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _config(tied: bool):
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=320,
        moe_intermediate_size=80,
        num_experts=6,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.05,
    )


def _model(tied: bool):
    from transformers import Qwen3MoeForCausalLM

    return Qwen3MoeForCausalLM(_config(tied))
