"""The load balancer of a run: the router's service in a Ray actor, behind verl's own balancer interface."""

from __future__ import annotations

import itertools
from typing import Any, cast

import numpy as np
import ray

from slipstream.core.config import RouterConfig, from_environment
from slipstream.core.rollout.messages import BLOCK_TOKENS, Answer, Placement, Request
from slipstream.core.rollout.prefix.blocks import block_keys
from slipstream.core.rollout.service import CALLS_AT_ONCE, RouterService


class RouterActor(RouterService):
    """Implements verl's `RequestLoadBalancer` and what `RoutedClient` asks beyond it.

    :param servers: server actors by address.
    :param config: the YAML that named this class; the settings are those of the `slipstream` node.
    """

    def __init__(self, servers: dict[str, Any], config: dict[str, Any] | None = None) -> None:
        node = from_environment()
        super().__init__(servers, node.router if node is not None else RouterConfig(mode="cache_aware"))
        self._numbers = itertools.count()
        self._native: dict[str, list[Placement]] = {}

    async def acquire_server(self, request_id: str, prompt_ids: Any = (), **_: Any) -> tuple[str, Any]:
        """For clients of other classes: every request is a trajectory of its own."""
        name = f"{request_id}/{next(self._numbers)}"
        blocks = np.array(block_keys(prompt_ids, BLOCK_TOKENS), np.uint64)
        placement = await self.acquire(Request("", name, name, None, blocks, len(prompt_ids)))
        self._native.setdefault(request_id, []).append(placement)
        return placement.replica, placement.server

    async def release_server(self, server_id: str, request_id: str | None = None) -> None:
        """See verl's protocol."""
        placements = self._native.get(request_id or "", [])
        placement = next((each for each in placements if each.replica == server_id), None)
        if placement is None:
            return
        placements.remove(placement)
        if not placements:
            del self._native[str(request_id)]
        tokens = self._waiting[placement.request_id].request.tokens
        await self.answered(placement.request_id, placement.attempt, Answer(tokens, 0, None, None))
        await self.end([placement.request_id])

    async def require_acquire_fields(self) -> list[str]:
        """See verl's protocol."""
        return ["prompt_ids"]

    async def require_release_fields(self) -> list[str]:
        """See verl's protocol."""
        return ["request_id"]

    async def clear_sticky_cache(self) -> dict[str, Any]:
        """See verl's protocol. Trajectories keep their homes: they leave them when that ends the step sooner."""
        return {"cleared_entries": 0, "server_loads": self._loads()}

    async def get_total_inflight(self) -> int:
        """See verl's protocol."""
        return sum(self._loads().values())


Router = cast(Any, ray.remote)(max_concurrency=CALLS_AT_ONCE)(RouterActor)
