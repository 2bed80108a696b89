"""The two decorators of the plugin interface."""

from __future__ import annotations

from typing import Final

import pluggy

PROJECT: Final = "slipstream"
"""Name of the pluggy project, and of the entry point group that plugins announce themselves in."""

hookspec: Final = pluggy.HookspecMarker(PROJECT)
"""Marks a specification."""

hookimpl: Final = pluggy.HookimplMarker(PROJECT)
"""Marks an implementation."""
