"""The demo's model: a small Qwen2-like language model, trained on the spot for about a minute on two CPU cores.

Its shape has what matters in a real one for a weight update: query, key and value that the engine fuses (with biases
and grouped heads), gate and up that it fuses, and an output head tied to an embedding that is not square. The head
size is 64 because vLLM's CPU attention refuses smaller ones.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipstream.plugins.verl.demo import task
from slipstream.plugins.verl.demo.folders import default_cache

__all__ = ["CHAT_TEMPLATE", "ModelSpec", "Progress", "build_tokenizer", "cached_model", "model_folder"]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'][0] }}{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a{% endif %}"
)
"""ChatML with one-letter roles: prompts stay short, and prefill stays cheap."""

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

Progress = Callable[[int, int, float], None]
"""Called after each pre-training step with (steps done, steps in all, loss)."""


@dataclass(frozen=True)
class ModelSpec:
    """Everything the model's weights depend on."""

    hidden_size: int = 256
    intermediate_size: int = 512
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    digits: int = task.DIGITS
    steps: int = 400
    batch: int = 64
    learning_rate: float = 2e-3
    seed: int = 0

    def key(self) -> str:
        """Return a name for the result: a hash of this spec and of the code that trains."""
        sources = inspect.getsource(task) + inspect.getsource(inspect.getmodule(ModelSpec))  # type: ignore[arg-type]
        text = json.dumps(asdict(self), sort_keys=True) + sources
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def build_tokenizer() -> Any:
    """Return a byte-level tokenizer without merges: any text is representable, and nothing has to be downloaded."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = [PAD, START, END]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    result = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call, unused-ignore]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )
    result.chat_template = CHAT_TEMPLATE
    return result


def _build(spec: ModelSpec, tokenizer: Any) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    settings: dict[str, Any] = {
        # Exactly the tokenizer's: verl masks every other token in the rollout engine, but not in the trainer.
        "vocab_size": len(tokenizer),
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "attn_implementation": "sdpa",
    }
    return Qwen2ForCausalLM(Qwen2Config(**settings))  # type: ignore[no-untyped-call, unused-ignore]


def _pretrain(spec: ModelSpec, model: Any, tokenizer: Any, progress: Progress | None) -> None:
    """Teach format and skill; the style of an answer stays a matter of chance."""
    import torch

    pairs = task.pretraining_pairs(spec.seed, spec.digits)
    # Every sequence has the same length, so there is no padding and no mask.
    prompt = len(
        tokenizer.apply_chat_template(
            [{"role": "user", "content": "0" * spec.digits}], add_generation_prompt=True, return_dict=False
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    warmup = max(1, spec.steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, max(0.02, (spec.steps - step) / (spec.steps - warmup)))
    )
    # One thread: on cores shared with other work, two that wait for each other in every small product are several
    # times slower than one.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model.train()
    for step in range(spec.steps):
        texts = []
        for _ in range(spec.batch):
            number, solution = next(pairs)
            texts.append(f"{START}u{number}{END}\n{START}a{solution}{END}")
        tokens = torch.tensor(tokenizer(texts, add_special_tokens=False)["input_ids"])
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits[:, prompt - 1 :]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, prompt:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if progress is not None:
            progress(step + 1, spec.steps, float(loss.detach()))
    model.eval()
    torch.set_num_threads(threads)


def _build_into(folder: Path, spec: ModelSpec, progress: Progress | None) -> None:
    import torch

    tokenizer = build_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        model = _build(spec, tokenizer)
        _pretrain(spec, model, tokenizer, progress)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def model_folder(spec: ModelSpec | None = None, cache: Path | None = None) -> Path:
    """Return where :func:`cached_model` keeps a model; the folder exists once it has been trained.

    Args:
        spec: The demo's model by default.
        cache: Folder that keeps models between runs; :func:`default_cache` by default.
    """
    return (cache or default_cache()) / "models" / f"demo-{(spec or ModelSpec()).key()}"


def cached_model(spec: ModelSpec | None = None, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the folder of the pre-trained model, training it if this spec has not been trained before.

    Args:
        spec: What to build; the demo's model by default.
        cache: See :func:`model_folder`.
        progress: Told about each training step.

    Returns:
        A Hugging Face folder (bf16 weights, tokenizer, chat template) that verl and vLLM load.
    """
    spec = spec or ModelSpec()
    target = model_folder(spec, cache)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
    try:
        _build_into(scratch, spec, progress)
        try:
            scratch.rename(target)
        except OSError:
            # Somebody else finished the same model first.
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target
