"""verl's vLLM server adapter with weight sync through slipstream."""

from __future__ import annotations

from typing import Any

from slipstream.plugins.verl.rollout import PublishingAdapter
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter


class SlipstreamServerAdapter(PublishingAdapter, ServerAdapter):  # type: ignore[misc]
    """See `PublishingAdapter`."""

    async def _server(self) -> Any:
        return self.server_handle if self._ensure_server_handle() else None
