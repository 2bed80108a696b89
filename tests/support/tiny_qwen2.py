"""A tiny Qwen2 checkpoint that real engines load: fused QKV with bias, grouped KV heads, padded vocabulary."""

from __future__ import annotations

from pathlib import Path

import torch

VOCAB = 300


def build(tied: bool, seed: int = 0, vocab: int = VOCAB) -> dict[str, torch.Tensor]:
    """fp32 state dict; the tied head is listed as Hugging Face does."""
    return {name: tensor.clone() for name, tensor in _model(tied, seed, vocab).state_dict().items()}


def save(weights: dict[str, torch.Tensor], folder: Path, tied: bool, dtype: torch.dtype) -> Path:
    """Write `weights` as a checkpoint folder in `dtype`."""
    model = _model(tied, 0, len(weights["model.embed_tokens.weight"]))
    model.load_state_dict(weights, strict=True)
    model.to(dtype).save_pretrained(folder)
    return folder


def _model(tied: bool, seed: int, vocab: int):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocab,
        hidden_size=256,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.05,
    )
    return Qwen2ForCausalLM(config)
