"""The SGLang adapter as a slipstream plugin."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.core.hooks import Engine, hookimpl
from slipstream.plugins.sglang.seams import seam_table


@hookimpl
def slipstream_engines() -> Iterable[Engine]:
    """SGLang."""
    yield Engine(name="sglang", distribution="sglang", seams=seam_table)
