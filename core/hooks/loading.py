"""Finds plugins and imports them, without registering them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from slipstream.core.hooks.builtins import BUILTIN_PLUGINS
from slipstream.core.hooks.errors import PluginLoadError
from slipstream.core.hooks.markers import PROJECT

DISABLE_VARIABLE: Final = "SLIPSTREAM_DISABLE_PLUGINS"
"""Environment variable: names of plugins that are not loaded, separated by commas."""


def disabled_names(environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return the names of the plugins that the user switched off."""
    names = environment.get(DISABLE_VARIABLE, "").split(",")
    return frozenset(name.strip() for name in names if name.strip())


def load_builtin(disabled: frozenset[str]) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the module and the distribution of each built-in plugin that is not disabled."""
    for name, module in BUILTIN_PLUGINS:
        if name not in disabled:
            yield name, importlib.import_module(module), "slipstream-rl"


def load_entry_points(disabled: frozenset[str]) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the plugin and the distribution of each installed entry point that is not disabled.

    :raises PluginLoadError: when one cannot be imported.
    """
    for entry_point in sorted(entry_points(group=PROJECT)):
        if entry_point.name in disabled:
            continue
        distribution = _distribution(entry_point)
        try:
            plugin = entry_point.load()
        except Exception as error:  # a plugin may raise anything at import
            raise load_error(entry_point.name, distribution, f"{type(error).__name__}: {error}") from error
        yield entry_point.name, plugin, distribution


def load_error(name: str, distribution: str, cause: str) -> PluginLoadError:
    """Return the error for a plugin that cannot be used."""
    return PluginLoadError(
        f"slipstream plugin {name!r} of {distribution} cannot be used: {cause}; "
        f"fix or uninstall it, or start with {DISABLE_VARIABLE}={name}"
    )


def _distribution(entry_point: EntryPoint) -> str:
    distribution = entry_point.dist
    return "an unknown distribution" if distribution is None else f"{distribution.name} {distribution.version}"
