"""verl's vLLM server with what the router needs of it: reports, and an abort of one request that leaves the cache."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from slipstream.plugins.verl.routing.messages import EngineReport
from slipstream.plugins.vllm.metering import EngineMeter
from verl.workers.rollout.replica import TokenOutput

REMEMBERED_ABORTS = 4096


class RoutedServer:
    """Mixin for verl's vLLM server actor."""

    _admitting: int
    """verl's: requests between its gate and the engine."""

    async def run_server(self, args: Any) -> None:
        """Start the engine, and watch it."""
        await super().run_server(args)  # type: ignore[misc]
        self._meter = EngineMeter(self.engine)  # type: ignore[attr-defined]
        self._refused: OrderedDict[str, None] = OrderedDict()
        """Aborted before they reached the engine."""

    async def slipstream_report(self) -> EngineReport:
        """Say what happened since the last call.

        :raises EngineDeadError: (vLLM's) when the engine's processes are gone.
        """
        engine: Any = self.engine  # type: ignore[attr-defined]
        if engine.errored:
            raise engine.dead_error
        paused: bool = self._submission_paused  # type: ignore[attr-defined]
        if paused:
            self._meter.pause()
        progress = self._meter.progress()
        active = self._meter.take_activity() or paused
        if not active and not progress:
            await engine.is_sleeping()  # a question to the engine itself: one that hangs is not idle
            active = True
        version: int | None = self.global_steps  # type: ignore[attr-defined]
        return EngineReport(self._meter.limits, self._meter.take_load(), progress, active, version)

    async def slipstream_abort(self, request_id: str) -> None:
        """Stop one request, wherever it is; `generate` returns what it has. No cached prefix is dropped.

        verl's own `abort_request` looks requests up by a name that vLLM replaces with one of its own.
        """
        engine: Any = self.engine  # type: ignore[attr-defined]
        if request_id in engine.output_processor.external_req_ids:
            await engine.abort(request_id)
            return
        self._refused[request_id] = None
        while len(self._refused) > REMEMBERED_ABORTS:
            self._refused.popitem(last=False)

    async def _park_until_admitted(self, request_id: str) -> TokenOutput | None:
        rejected: TokenOutput | None = await super()._park_until_admitted(request_id)  # type: ignore[misc]
        if rejected is None and request_id in self._refused:
            self._admitting -= 1
            version = {"global_steps": self.global_steps}  # type: ignore[attr-defined]
            return TokenOutput(token_ids=[], stop_reason="aborted", extra_fields=version)
        return rejected
