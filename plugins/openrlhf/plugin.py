"""The OpenRLHF adapter as a slipstream plugin."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.core.hooks import Framework, hookimpl
from slipstream.plugins.openrlhf.seams import seam_table


@hookimpl
def slipstream_frameworks() -> Iterable[Framework]:
    """OpenRLHF."""
    yield Framework(name="openrlhf", distribution="openrlhf", seams=seam_table)
