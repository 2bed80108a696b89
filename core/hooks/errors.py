"""What can be wrong with a plugin."""

from __future__ import annotations


class PluginError(RuntimeError):
    """Something is wrong with a plugin; the message names it."""


class PluginLoadError(PluginError):
    """A plugin cannot be imported, or does not follow the specifications."""


class PluginConflictError(PluginError):
    """Two plugins claim the same name."""


class UnknownRecordError(PluginError, LookupError):
    """No plugin provides a record of that name."""
