"""verl's SGLang server with what the router needs of it: reports, and an abort of one request."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

from slipstream.core.rollout import LoadReport
from slipstream.core.rollout.messages import REMEMBERED_ABORTS, EngineReport
from slipstream.plugins.sglang.metering import EngineMeter, ask
from verl.workers.rollout.replica import TokenOutput


class RoutedSglangServer:
    """Mixin for verl's SGLang server actor."""

    tokenizer_manager: Any
    global_steps: int | None

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        """Start the engine, and watch it."""
        await super().launch_server(*args, **kwargs)  # type: ignore[misc]
        self._meter = await EngineMeter.of(self.tokenizer_manager)
        self._calls: dict[str, asyncio.Future[Any]] = {}
        self._cached: dict[str, int] = {}
        self._ask = self.tokenizer_manager.generate_request
        self.tokenizer_manager.generate_request = self._noted
        self._refused: OrderedDict[str, None] = OrderedDict()
        """Aborted before they reached the engine."""

    async def generate(
        self, prompt_ids: Any, sampling_params: dict[str, Any], request_id: str, *args: Any, **kwargs: Any
    ) -> Any:
        """See verl's `SGLangHttpServer.generate`."""
        if request_id not in self._refused:
            call = super().generate(prompt_ids, sampling_params, request_id, *args, **kwargs)  # type: ignore[misc]
            self._calls[request_id] = task = asyncio.ensure_future(call)
            try:
                output = await task
                output.extra_fields.setdefault("num_cached_tokens", self._cached.get(request_id))
                return output
            except asyncio.CancelledError:
                if request_id not in self._refused:
                    raise
            finally:
                del self._calls[request_id]
                self._cached.pop(request_id, None)
        return TokenOutput(token_ids=[], stop_reason="aborted", extra_fields={"global_steps": self.global_steps})

    async def _noted(self, request: Any, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, Any]]:
        """SGLang's `generate_request`: verl drops what it says about the cache."""
        async for output in self._ask(request, *args, **kwargs):
            if isinstance(request.rid, str) and request.rid in self._calls:
                self._cached[request.rid] = int(output["meta_info"].get("cached_tokens", 0))
            yield output

    async def slipstream_report(self) -> EngineReport:
        """Say what happened since the last call."""
        active = self._meter.take_activity() or bool(self.tokenizer_manager.is_pause)
        if not active:
            await ask(self.tokenizer_manager)  # one that hangs is not idle
        return EngineReport(self._meter.limits, LoadReport(), self._meter.progress(), True, self.global_steps)

    async def slipstream_abort(self, request_id: str) -> None:
        """Stop one request, wherever it is; `generate` returns what it has.

        SGLang stops all whose id begins like this one, but the router's are of one length.
        """
        state = self.tokenizer_manager.rid_to_state.get(request_id)
        if state is not None and state.dispatched:
            self.tokenizer_manager.abort_request(request_id)
            return
        self._refused[request_id] = None
        while len(self._refused) > REMEMBERED_ABORTS:
            self._refused.popitem(last=False)
        if request_id in self._calls:  # waits until the engine goes on
            self._calls[request_id].cancel()
