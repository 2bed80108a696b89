"""Real updates: models trained for some AdamW steps with float32 masters, and the bf16 weights an engine would get."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

Weights = dict[str, torch.Tensor]


def train(
    model: Any, batches: Iterator[torch.Tensor], rate: float, steps: int, warm: bool, prompt: int
) -> Iterator[Weights]:
    """Yield the bf16 weights before the first step and after each.

    Args:
        model: in float32, with the values of its bf16 checkpoint.
        batches: int64[sequences, tokens] each.
        rate: learning rate of AdamW (0.9, 0.999), weight decay 0.01, gradients clipped at 1.
        steps: how many.
        warm: whether masters start with random residues below the bf16 grid, as after a long run; else they start on
            the grid, as a run from a checkpoint does.
        prompt: leading tokens without a loss.
    """
    generator = torch.Generator().manual_seed(0)
    if warm:
        for value in model.parameters():
            ulp = torch.ldexp(value.data != 0, torch.frexp(value.data).exponent - 8)
            value.data.add_(ulp * (torch.rand(value.shape, generator=generator) - 0.5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.999), weight_decay=0.01)
    model.train()
    yield _as_bf16(model)
    for tokens in itertools.islice(batches, steps):
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits[:, prompt - 1 :]
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, prompt:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield _as_bf16(model)


def demo(rate: float, steps: int, warm: bool) -> Iterator[Weights]:
    """The demo's model (1.25M elements, pre-trained once and cached) on its own pre-training objective."""
    from slipstream.plugins.verl.demo.model import END, START, ModelSpec, build_tokenizer, cached_model
    from slipstream.plugins.verl.demo.task import pretraining_pairs

    spec = ModelSpec()
    tokenizer = build_tokenizer()
    model = _load(cached_model(spec))
    pairs = pretraining_pairs(spec.seed + 1, spec.digits)
    prompt = len(tokenizer(f"{START}u{'0' * spec.digits}{END}\n{START}a", add_special_tokens=False)["input_ids"])

    def batches() -> Iterator[torch.Tensor]:
        while True:
            texts = [f"{START}u{number}{END}\n{START}a{answer}{END}" for number, answer in itertools.islice(pairs, 64)]
            yield torch.tensor(tokenizer(texts, add_special_tokens=False)["input_ids"])

    return train(model, batches(), rate, steps, warm, prompt)


def smollm2(rate: float, steps: int, warm: bool) -> Iterator[Weights]:
    """SmolLM2-135M-Instruct, as `make demo MODEL=smollm2` exports it, on docstrings of the standard library.

    Raises:
        FileNotFoundError: it was not exported.
    """
    from transformers import AutoTokenizer

    from slipstream.plugins.verl.demo.model import default_cache

    folder = default_cache() / "models" / "smollm2-135m-instruct"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there; `make demo MODEL=smollm2` exports it")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = torch.tensor(tokenizer(_docstrings())["input_ids"])

    def batches() -> Iterator[torch.Tensor]:
        for start in itertools.count(0, 128):
            yield tokens[start : start + 128].view(2, 64)

    return train(_load(folder), batches(), rate, steps, warm, 1)


MODELS: dict[str, Callable[[float, int, bool], Iterator[Weights]]] = {"demo model": demo, "SmolLM2-135M": smollm2}


def _docstrings() -> str:
    names = ("argparse", "asyncio.events", "collections", "datetime", "decimal", "email.message", "logging", "random")
    modules = [importlib.import_module(name) for name in names]
    found = [inspect.getdoc(value) for module in modules for _, value in inspect.getmembers(module, inspect.isclass)]
    return "\n\n".join(text for text in found if text)


def _load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def _as_bf16(model: Any) -> Weights:
    return {name: value.detach().to(torch.bfloat16) for name, value in model.named_parameters()}
