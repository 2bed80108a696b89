"""The verl adapter as a slipstream plugin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slipstream.core.config import SlipstreamConfig
from slipstream.core.hooks import Framework, hookimpl
from slipstream.plugins.verl.seams import seam_table

HYDRA_CONFIG = "verl.trainer.config:ppo_trainer"


def _demo(**arguments: object) -> int | None:
    from slipstream.plugins.verl.demo.run import demo

    return demo(**arguments)  # type: ignore[arg-type]


def _check_config(config: Any, slipstream: SlipstreamConfig) -> None:
    from slipstream.plugins.verl.requirements import check

    check(config, slipstream)


def _read_metrics(line: Any) -> Any:
    from slipstream.plugins.verl.telemetry import step_of

    return step_of(line)


@hookimpl
def slipstream_frameworks() -> Iterable[Framework]:
    """verl."""
    yield Framework(
        name="verl",
        distribution="verl",
        seams=seam_table,
        demo=_demo,
        hydra_config=HYDRA_CONFIG,
        check_config=_check_config,
        read_metrics=_read_metrics,
    )
