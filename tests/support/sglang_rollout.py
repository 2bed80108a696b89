"""A real SGLang engine on the CPU, as tests drive it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent


def prepare() -> None:
    """Set the environment of the processes that the engine starts, and this one's path: before sglang is imported."""
    paths = [str(_HERE / "sglang_cpu"), str(_HERE)]
    sys.path[:0] = [path for path in paths if path not in sys.path]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, [*paths, *inherited])))
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    os.environ["SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"] = "0"  # workers on a CPU look at one memory, one by one
    import sitecustomize  # noqa: F401  # this process started without the path


def start(folder: Path, dtype: str, tensor_parallel: int = 1, **more: Any) -> Any:
    """A `sglang.Engine` of the checkpoint in `folder`."""
    prepare()
    if tensor_parallel > 1:  # SGLang wants a memory node for each worker otherwise
        cores = sorted(os.sched_getaffinity(0))
        bound = [str(cores[rank % len(cores)]) for rank in range(tensor_parallel)]
        os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(bound)
    from sglang.srt.entrypoints.engine import Engine

    from slipstream.plugins.sglang.messages import LOADER

    return Engine(
        **{
            "model_path": str(folder),
            "dtype": dtype,
            "device": "cpu",
            "attention_backend": "torch_native",
            "disable_cuda_graph": True,
            "skip_tokenizer_init": True,
            "max_total_tokens": 4096,
            "max_running_requests": 8,
            "mem_fraction_static": 0.8,  # of what is free; `max_total_tokens` is what counts
            "tp_size": tensor_parallel,
            "custom_weight_loader": [LOADER],
            "random_seed": 0,
            "sleep_on_idle": True,  # an idle scheduler takes a core otherwise
            **more,
        }
    )
