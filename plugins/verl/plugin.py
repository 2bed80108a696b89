"""The verl adapter as a slipstream plugin."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.core.hooks import Framework, hookimpl
from slipstream.plugins.verl.seams import seam_table


def _demo(**arguments: object) -> int | None:
    from slipstream.plugins.verl.demo.run import demo

    return demo(**arguments)  # type: ignore[arg-type]


@hookimpl
def slipstream_frameworks() -> Iterable[Framework]:
    """verl."""
    yield Framework(
        name="verl", distribution="verl", seams=seam_table, demo=_demo, hydra_config="verl.trainer.config:ppo_trainer"
    )
