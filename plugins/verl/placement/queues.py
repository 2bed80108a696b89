"""One TransferQueue a run. TransferQueue names its controller for the whole Ray cluster, so a second run would take the
first one's for its own, and train on its samples."""

from __future__ import annotations

import os
from typing import Any

from slipstream.core.config import RUN_NONCE

_NAMESPACE = "transfer_queue"


class _Renamed:
    """Stands for `target`; calls of `method` name the run's own Ray namespace."""

    def __init__(self, target: Any, method: str, namespace: str) -> None:
        self._target, self._method, self._namespace = target, method, namespace

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name != self._method:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("namespace") == _NAMESPACE:
                kwargs["namespace"] = self._namespace
            return found(*args, **kwargs)

        return call


def run_namespace() -> str:
    """Return the Ray namespace of this run's TransferQueue."""
    return f"{_NAMESPACE}_{os.environ[RUN_NONCE]}"


def own_queue(interface: Any) -> None:
    """Make `transfer_queue.interface` find and start this run's controller, in place."""
    namespace = run_namespace()
    interface.ray = _Renamed(interface.ray, "get_actor", namespace)
    interface.TransferQueueController = _Renamed(interface.TransferQueueController, "options", namespace)
