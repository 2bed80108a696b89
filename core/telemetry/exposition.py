"""The last step's metrics over HTTP, in Prometheus' text format."""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from slipstream.core.config import ConfigError, from_environment
from slipstream.core.telemetry.metrics import metric_of

_logger = logging.getLogger("slipstream")


class Exposition:
    """Serves gauges at ``http://<host>:<port>/metrics``, on all interfaces, from a daemon thread.

    The values are those of the last step that had them; `slipstream_step` says which step was the last one.
    """

    def __init__(self, port: int) -> None:
        """Start serving.

        :param port: 0 is one that the system chooses; `port` says which.
        :raises OSError: the port cannot be had.
        :raises ImportError: there is no prometheus_client.
        """
        from prometheus_client import CollectorRegistry, start_http_server

        self._lock = threading.Lock()
        self._values: dict[str, float] = {}
        self._step = -1
        # a registry of its own: Ray's and vLLM's metrics have their own endpoints
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        self._server, self._thread = start_http_server(port, registry=registry)

    @property
    def port(self) -> int:
        """The port that it serves at."""
        return int(self._server.server_port)

    def update(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take what a tracker is told about a step: numbers whose names are slipstream's."""
        found = {name: float(value) for name, value in metrics.items() if metric_of(name) and _is_number(value)}
        with self._lock:
            self._values.update(found)
            self._step = step

    def collect(self) -> Iterator[Any]:
        """Yield the metric families; what prometheus_client asks of a collector."""
        from prometheus_client.core import GaugeMetricFamily

        with self._lock:
            values, step = dict(self._values), self._step
        if step >= 0:
            yield GaugeMetricFamily("slipstream_step", "training step of the values", value=step)
        families: dict[str, Any] = {}
        for name, value in values.items():
            known = metric_of(name)
            assert known is not None
            metric, labels = known
            if metric.exposed not in families:
                families[metric.exposed] = GaugeMetricFamily(metric.exposed, metric.meaning, labels=list(labels))
            families[metric.exposed].add_metric(list(labels.values()), value)
        yield from families.values()

    def close(self) -> None:
        """Stop serving and give the port back."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def check_prometheus() -> None:
    """Refuse ``slipstream.prometheus_port`` where its client library is missing.

    :raises ConfigError: it is not installed.
    """
    if find_spec("prometheus_client") is None:
        raise ConfigError(
            "slipstream.prometheus_port: expected the package prometheus_client, found none; install it on the node "
            "that runs the training loop, or remove the setting"
        )


def expose(step: int, metrics: Mapping[str, Any]) -> None:
    """Serve what a tracker is told about a step, in a run with ``slipstream.prometheus_port``; never stops the run."""
    exposition = _exposition()
    if exposition is not None:
        exposition.update(step, metrics)


@functools.cache
def _exposition() -> Exposition | None:
    """Of this process; the first step starts it."""
    config = from_environment()
    if config is None or config.prometheus_port is None:
        return None
    try:
        return Exposition(config.prometheus_port)
    except (OSError, ImportError) as error:
        _logger.warning("slipstream.prometheus_port=%d: metrics are not served: %s", config.prometheus_port, error)
        return None


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except TypeError:
        return False
