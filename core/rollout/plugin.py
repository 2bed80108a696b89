"""The cache-aware router as an ordinary plugin: another distribution can replace it."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.core.hooks import RoutingPolicy, hookimpl
from slipstream.core.rollout.router import CacheAwareRouter


@hookimpl
def slipstream_routing_policies() -> Iterable[RoutingPolicy]:
    """``slipstream/router=cache_aware``."""
    yield RoutingPolicy(name="cache_aware", factory=CacheAwareRouter)
