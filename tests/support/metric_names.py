"""Metrics against the table of their names (`slipstream.core.telemetry.metrics`)."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.core.telemetry.metrics import METRICS, PREFIX, metric_of


def undescribed(names: Iterable[str]) -> list[str]:
    """Names of slipstream's that the table lacks."""
    return [name for name in names if name.startswith(PREFIX) and metric_of(name) is None]


def missing(part: str, names: Iterable[str]) -> set[str]:
    """Metrics of a part that the table has and `names` (without ``slipstream/<part>/``) lack."""
    found = {known[0] for name in names if (known := metric_of(f"{PREFIX}{part}/{name}")) is not None}
    return {metric.name for metric in METRICS if metric.name.startswith(f"{part}/") and metric not in found}
