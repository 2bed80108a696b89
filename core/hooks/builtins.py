"""The plugins that are part of core; they register through the same specifications as everybody's."""

from __future__ import annotations

from typing import Final

BUILTIN_PLUGINS: Final[tuple[tuple[str, str], ...]] = (
    ("drafter", "slipstream.core.drafter.plugin"),
    ("weights", "slipstream.core.weights.plugin"),
)
"""Name and module of each built-in plugin."""
