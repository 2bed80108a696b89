"""verl's SGLang server adapter with weight sync through slipstream."""

from __future__ import annotations

from typing import Any

from slipstream.plugins.verl.rollout import PublishingAdapter
from verl.workers.rollout.sglang_rollout.sglang_rollout import ServerAdapter


class SlipstreamServerAdapter(PublishingAdapter, ServerAdapter):  # type: ignore[misc]
    """See `PublishingAdapter`."""

    async def _server(self) -> Any:
        adapter: Any = self  # verl's class is not typed
        await adapter._init_server_adapter()
        return adapter.server_actor if adapter._engine is not None and adapter._is_server_tp_leader() else None
