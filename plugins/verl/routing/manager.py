"""verl's manager of rollout servers with our balancer and client, and their metrics in verl's tracker."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from slipstream.core.config import ConfigError, SlipstreamConfig
from slipstream.core.telemetry import Routing, event_log

_logger = logging.getLogger("slipstream")


def router_config_path() -> str:
    """Return the file for verl's `rollout.router_config_path`, as it is on this node."""
    return str(files("slipstream.plugins.verl.routing") / "router.yaml")


def routed(manager: type) -> None:
    """Make `LLMServerManager` start our balancer and hand out our client, in place."""
    manager.__init__ = _with_our_router(manager.__init__)  # type: ignore[misc]
    manager.get_client = _with_our_client(manager.get_client)  # type: ignore[attr-defined]


def _with_our_router(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        init(self, *args, **kwargs)
        if self._load_balancer_cls is not None:
            raise ConfigError(
                f"slipstream.router.mode=cache_aware: the trainer brings a load balancer of its own "
                f"({self._load_balancer_cls.__name__}), which would take the place of slipstream's; "
                "add slipstream/router=native"
            )
        self.rollout_config.router_config_path = router_config_path()

    return __init__


def _with_our_client(get_client: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(get_client)
    def get(self: Any, client_cls: Any = None, **kwargs: Any) -> Any:
        from slipstream.plugins.verl.routing.client import client_class

        return get_client(self, client_class(client_cls), **kwargs)

    return get


def with_router_metrics(
    consume_sync_metrics: Callable[..., dict[str, Any]], config: SlipstreamConfig
) -> Callable[..., dict[str, Any]]:
    """Wrap `PPOTrainer._consume_sync_metrics`: add what the router did since the last step."""
    events = event_log(config)

    @functools.wraps(consume_sync_metrics)
    def consume(self: Any) -> dict[str, Any]:
        import ray

        metrics = dict(consume_sync_metrics(self))
        # In verl's `separate_async` clients use the standalone servers' balancer; the other one is idle.
        manager = getattr(self, "standalone_server_manager", None) or self.llm_server_manager
        found = ray.get(manager.global_load_balancer.take_metrics.remote())
        if not found and not getattr(self, "slipstream_router_idle", False):
            self.slipstream_router_idle = True
            _logger.warning(
                "slipstream: no rollout request came to the router in this step, so slipstream/router=cache_aware has "
                "no effect; does rollout.agent.agent_loop_manager_class bypass verl's LLMServerClient?"
            )
        if found:
            events.write(Routing.from_metrics(self.global_steps, found))
        metrics.update({f"slipstream/router/{name}": value for name, value in found.items()})
        return metrics

    return consume
