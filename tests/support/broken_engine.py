"""An external module for verl (`VERL_USE_EXTERNAL_MODULES`): the engine worker fails in the middle of a delta."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from slipstream.plugins.verl.post_import import after_import


def _break(transaction: ModuleType) -> None:
    scatter = transaction.scatter_changes
    count = 0

    def failing(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise RuntimeError("broken on purpose")
        return scatter(*args)

    transaction.scatter_changes = failing  # type: ignore[attr-defined]


after_import("slipstream.core.weights.transaction", _break)
