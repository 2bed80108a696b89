"""The plugins that are part of core; they register through the same specifications as everybody's."""

from __future__ import annotations

from typing import Final

BUILTIN_PLUGINS: Final[tuple[tuple[str, str], ...]] = (
    ("weights", "slipstream.core.weights.plugin"),
    ("drafter", "slipstream.core.drafter.plugin"),
    ("graph", "slipstream.core.graph.plugin"),
    ("rollout", "slipstream.core.rollout.plugin"),
    ("telemetry", "slipstream.core.telemetry.plugin"),
)
"""Name and module of each built-in plugin."""
