"""Objects of this process, called as Ray actors are called."""

from __future__ import annotations

import asyncio
import traceback
from types import SimpleNamespace
from typing import Any

import ray.exceptions


class Handle:
    """Calls an object of this process as a Ray actor is called."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._dead = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._actor, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            work = asyncio.ensure_future(method(*args, **kwargs))
            while not work.done() and not self._dead:
                await asyncio.wait({work}, timeout=0.01)
            if self._dead:
                work.cancel()
                raise ray.exceptions.RayActorError
            try:
                return work.result()
            except Exception as error:
                raise ray.exceptions.RayTaskError(name, traceback.format_exc(), error).as_instanceof_cause() from error

        return SimpleNamespace(remote=lambda *args, **kwargs: asyncio.ensure_future(call(*args, **kwargs)))

    def kill(self) -> None:
        """From now on, every call fails as that of a dead actor."""
        self._dead = True
