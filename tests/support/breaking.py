"""Means to make an update fail half-way inside a real engine worker."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def failing_scatter(transaction: ModuleType) -> Any:
    """A `scatter_changes` for `transaction` that fails at its third call: some tensors are written by then."""
    scatter = transaction.scatter_changes
    count = 0

    def failing(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise RuntimeError("broken on purpose")
        return scatter(*args)

    return failing
