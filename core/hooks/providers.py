"""Asks plugins for their records, knowing which plugin returned which."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import pluggy

from slipstream.core.hooks.errors import PluginConflictError, UnknownRecordError
from slipstream.core.hooks.loading import DISABLE_VARIABLE, load_error


class Named(Protocol):
    """A record of a provider hook."""

    @property
    def name(self) -> str:
        """Unique among the records of its kind."""


Record = TypeVar("Record", bound=Named)


def collect(
    hook: pluggy.HookCaller, distributions: Mapping[str, str], record_type: type[Record]
) -> Mapping[str, Record]:
    """Return the records of one provider hook by name.

    Each plugin is asked by itself, because a call of the hook would not say which plugin returned what.

    :param distributions: the distribution of each plugin, by plugin name.
    :raises PluginLoadError: when a plugin wraps the hook, raises, or returns something else than records.
    :raises PluginConflictError: when two records have the same name.
    """
    collected: dict[str, Record] = {}
    providers: dict[str, str] = {}
    for implementation in hook.get_hookimpls():
        plugin, distribution = implementation.plugin_name, distributions[implementation.plugin_name]
        provider = f"plugin {plugin!r} of {distribution}"
        for record in _ask(implementation, distribution, hook.name, record_type):
            if record.name in collected:
                raise PluginConflictError(
                    f"two plugins provide a {record_type.__name__} called {record.name!r}: {providers[record.name]} "
                    f"and {provider}; switch one off with {DISABLE_VARIABLE}=<plugin>"
                )
            collected[record.name], providers[record.name] = record, provider
    return MappingProxyType(collected)


def _ask(implementation: Any, distribution: str, hook_name: str, record_type: type[Record]) -> list[Record]:
    if implementation.hookwrapper or implementation.wrapper:
        cause = f"{hook_name} cannot be wrapped; return records instead"
        raise load_error(implementation.plugin_name, distribution, cause)
    try:
        provided = list(implementation.function() or ())
    except Exception as error:  # a plugin may raise anything
        cause = f"{hook_name} raised {type(error).__name__}: {error}"
        raise load_error(implementation.plugin_name, distribution, cause) from error
    for record in provided:
        if not isinstance(record, record_type):
            cause = f"{hook_name}: expected {record_type.__name__} records, got {record!r}"
            raise load_error(implementation.plugin_name, distribution, cause)
    return provided


def lookup(noun: str, known: Mapping[str, Record], name: str) -> Record:
    """Return the record called `name`.

    :raises UnknownRecordError: naming the known records and the closest one.
    """
    if name in known:
        return known[name]
    closest = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {closest[0]!r}?" if closest else ""
    names = ", ".join(sorted(known)) or "none"
    raise UnknownRecordError(f"unknown {noun} {name!r}{hint} (known: {names}); install the plugin that provides it")
