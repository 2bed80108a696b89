"""What verl 0.9.1, written for SGLang 0.5.12, needs changed to drive the newer SGLang that slipstream serves.

Each function changes one module of verl, right after its import, and nothing where verl fits by itself.
"""

from __future__ import annotations

import abc
import dataclasses
from types import SimpleNamespace
from typing import Any


def know_server_arguments(server: Any) -> None:
    """In `async_sglang_server`: SGLang's `ServerArgs` is no dataclass any more, and verl asks for its fields."""
    from sglang.srt.arg_groups import arg_utils

    if not dataclasses.is_dataclass(server.ServerArgs):
        server.dataclasses = SimpleNamespace(fields=arg_utils.record_fields)


def open_sessions(client: Any) -> None:
    """In `http_server_engine`: SGLang takes weights only inside a weight-update session, which verl does not open.

    SGLang's base class asks for both methods, without which verl's client cannot be made at all.
    """
    adapter = client.AsyncHttpServerAdapter
    if "begin_weight_update" not in adapter.__abstractmethods__:
        return

    async def begin_weight_update(self: Any, selector: str = "all") -> Any:
        return await self._make_async_request("begin_weight_update", {"selector": selector})

    async def end_weight_update(self: Any) -> Any:
        return await self._make_async_request("end_weight_update", {})

    update = adapter.update_weights_from_tensor

    async def update_weights_from_tensor(self: Any, req: Any) -> Any:
        await self.begin_weight_update()
        try:
            return await update(self, req)
        finally:
            await self.end_weight_update()

    for method in (begin_weight_update, end_weight_update, update_weights_from_tensor):
        setattr(adapter, method.__name__, method)
    abc.update_abstractmethods(adapter)
