"""What a router needs of the Ray actor that owns a vLLM engine: reports, and an abort of one request that leaves the
cache. Nothing here imports vLLM."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from slipstream.core.rollout.messages import REMEMBERED_ABORTS, EngineReport
from slipstream.plugins.vllm.metering import EngineMeter


class RoutedEngine:
    """Mixin for the Ray actor."""

    _meter: EngineMeter

    def _watch_engine(self) -> None:
        """To be called once the engine is there."""
        self._meter = EngineMeter(self._routed_engine())
        self._refused: OrderedDict[str, None] = OrderedDict()
        """Aborted before they reached the engine."""

    def _routed_engine(self) -> Any:
        """The `AsyncLLM`."""
        raise NotImplementedError

    def _stands_still(self) -> bool:
        """Whether the engine was paused on purpose."""
        raise NotImplementedError

    def _weight_version(self) -> int | None:
        """Of the weights that generate."""
        raise NotImplementedError

    async def slipstream_report(self) -> EngineReport:
        """Say what happened since the last call.

        :raises EngineDeadError: (vLLM's) when the engine's processes are gone.
        """
        engine = self._routed_engine()
        if engine.errored:
            raise engine.dead_error
        paused = self._stands_still()
        if paused:
            self._meter.pause()
        progress = self._meter.progress()
        active = self._meter.take_activity() or paused
        if not active and not progress:
            await engine.is_sleeping()  # a question to the engine itself: one that hangs is not idle
            active = True
        return EngineReport(self._meter.limits, self._meter.take_load(), progress, active, self._weight_version())

    async def slipstream_abort(self, request_id: str) -> None:
        """Stop one request, wherever it is; its generator ends with what it has. No cached prefix is dropped.

        :param request_id: as its client named it; vLLM has a name of its own.
        """
        engine = self._routed_engine()
        if request_id in engine.output_processor.external_req_ids:
            await engine.abort(request_id)
            return
        self._refused[request_id] = None
        while len(self._refused) > REMEMBERED_ABORTS:
            self._refused.popitem(last=False)
