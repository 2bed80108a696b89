"""verl's vLLM server with what the router needs of it."""

from __future__ import annotations

from typing import Any

from slipstream.plugins.vllm.routing import RoutedEngine
from verl.workers.rollout.replica import TokenOutput


class RoutedServer(RoutedEngine):
    """Mixin for verl's vLLM server actor, whose own `abort_request` looks requests up by a name that vLLM replaces."""

    engine: Any
    global_steps: int | None
    _submission_paused: bool
    _admitting: int
    """verl's: requests between its gate and the engine."""

    async def run_server(self, args: Any) -> None:
        """Start the engine, and watch it."""
        await super().run_server(args)  # type: ignore[misc]
        self._watch_engine()

    def _routed_engine(self) -> Any:
        return self.engine

    def _stands_still(self) -> bool:
        return self._submission_paused

    def _weight_version(self) -> int | None:
        return self.global_steps

    async def _park_until_admitted(self, request_id: str) -> TokenOutput | None:
        rejected: TokenOutput | None = await super()._park_until_admitted(request_id)  # type: ignore[misc]
        if rejected is None and request_id in self._refused:
            self._admitting -= 1
            version = {"global_steps": self.global_steps}
            return TokenOutput(token_ids=[], stop_reason="aborted", extra_fields=version)
        return rejected
