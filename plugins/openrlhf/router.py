"""The router of a run, as its controller sees it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

import ray

from slipstream.core.config import SlipstreamConfig
from slipstream.core.rollout.service import CALLS_AT_ONCE, RouterService
from slipstream.core.telemetry import Routing, event_log

logger = logging.getLogger(__name__)


class RunRouter:
    """Starts the router and tells the engines of it; from then on, their requests go where it says.

    Args:
        engines: the engine actors (`engine_actor.SlipstreamRolloutActor`).
        config: the node.
    """

    def __init__(self, engines: Sequence[Any], config: SlipstreamConfig) -> None:
        actor = cast(Any, ray.remote)(num_cpus=0, max_concurrency=CALLS_AT_ONCE)(RouterService)
        servers = {f"engine {number}": engine for number, engine in enumerate(engines)}
        self._router = actor.remote(servers, config.router)
        self._events = event_log(config)
        self._idle = False
        ray.get([engine.slipstream_join.remote(self._router, name) for name, engine in servers.items()])

    def after_step(self, step: int) -> dict[str, float]:
        """Return what the router did since the last call, as metrics of the step."""
        found: dict[str, float] = ray.get(self._router.take_metrics.remote())
        if found:
            self._events.write(Routing.from_metrics(step, found))
        elif not self._idle:
            self._idle = True
            logger.warning(
                "slipstream: no request came to the router in this step, so --slipstream.router cache_aware has no "
                "effect; does the agent of --train.agent_func_path bypass `llm_engine.generate`?"
            )
        return {f"slipstream/router/{name}": value for name, value in found.items()}
