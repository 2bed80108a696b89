"""The plugin manager: registers plugins and looks up the records they provide."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar, final

import pluggy

from slipstream.core.hooks import records, specs
from slipstream.core.hooks.errors import PluginConflictError
from slipstream.core.hooks.loading import disabled_names, load_builtin, load_entry_points, load_error
from slipstream.core.hooks.markers import PROJECT
from slipstream.core.hooks.providers import Named, collect, lookup

_Record = TypeVar("_Record", bound=Named)
_SPECIFICATIONS: Final = (
    specs.CodecSpecs,
    specs.TransportSpecs,
    specs.DrafterSpecs,
    specs.RoutingSpecs,
    specs.SchedulerSpecs,
    specs.EngineSpecs,
    specs.FrameworkSpecs,
    specs.WeightSyncSpecs,
    specs.RolloutSpecs,
    specs.StageSpecs,
)


@final
class SlipstreamPlugins:
    """A set of registered plugins, and the records and events that go through them."""

    def __init__(self) -> None:
        """Start with no plugin at all; `installed` is what a process normally uses."""
        self._manager = pluggy.PluginManager(PROJECT)
        self._distributions: dict[str, str] = {}
        self._records: dict[str, Mapping[str, Any]] = {}
        for specification in _SPECIFICATIONS:
            self._manager.add_hookspecs(specification)

    @classmethod
    def installed(cls) -> SlipstreamPlugins:
        """Return a manager with the built-in plugins and those of the entry point group ``slipstream``.

        :raises PluginLoadError: naming the plugin, its distribution and the cause.
        :raises PluginConflictError: when two distributions use the same plugin name.
        """
        plugins = cls()
        disabled = disabled_names()
        for load in (load_builtin, load_entry_points):
            for name, plugin, distribution in load(disabled):
                plugins.register(plugin, name, distribution)
        return plugins

    @property
    def hook(self) -> pluggy.HookRelay:
        """The hooks, to fire events: ``plugins().hook.slipstream_weights_changed(version=3)``."""
        return self._manager.hook

    def register(self, plugin: object, name: str, distribution: str = "this process") -> None:
        """Register a plugin and check every implementation it marks against the specifications.

        :param name: unique among plugins; what SLIPSTREAM_DISABLE_PLUGINS switches off.
        :param distribution: where it comes from, for messages.
        :raises PluginLoadError: when it implements an unknown hook or takes unknown arguments.
        :raises PluginConflictError: when the name is taken.
        """
        if name in self._distributions:
            raise PluginConflictError(
                f"two slipstream plugins are called {name!r}: one of {self._distributions[name]}, "
                f"one of {distribution}; uninstall one of them"
            )
        try:
            self._manager.register(plugin, name)
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            if self._manager.has_plugin(name):
                self._manager.unregister(name=name)
            raise load_error(name, distribution, str(error)) from error
        self._distributions[name] = distribution
        self._records.clear()

    def distributions(self) -> Mapping[str, str]:
        """Return the distribution of each registered plugin, by plugin name."""
        return MappingProxyType(self._distributions)

    def codecs(self) -> Mapping[str, records.Codec]:
        """Return every codec by name."""
        return self._provided("slipstream_codecs", records.Codec)

    def codec(self, name: str) -> records.Codec:
        """Return the codec called `name`, or raise UnknownRecordError."""
        return lookup("codec", self.codecs(), name)

    def transports(self) -> Mapping[str, records.Transport]:
        """Return every transport by name."""
        return self._provided("slipstream_transports", records.Transport)

    def transport(self, name: str) -> records.Transport:
        """Return the transport called `name`, or raise UnknownRecordError."""
        return lookup("transport", self.transports(), name)

    def drafters(self) -> Mapping[str, records.Drafter]:
        """Return every drafter by name."""
        return self._provided("slipstream_drafters", records.Drafter)

    def drafter(self, name: str) -> records.Drafter:
        """Return the drafter called `name`, or raise UnknownRecordError."""
        return lookup("drafter", self.drafters(), name)

    def routing_policies(self) -> Mapping[str, records.RoutingPolicy]:
        """Return every routing policy by name."""
        return self._provided("slipstream_routing_policies", records.RoutingPolicy)

    def routing_policy(self, name: str) -> records.RoutingPolicy:
        """Return the routing policy called `name`, or raise UnknownRecordError."""
        return lookup("routing policy", self.routing_policies(), name)

    def schedulers(self) -> Mapping[str, records.Scheduler]:
        """Return every scheduler by name."""
        return self._provided("slipstream_schedulers", records.Scheduler)

    def scheduler(self, name: str) -> records.Scheduler:
        """Return the scheduler called `name`, or raise UnknownRecordError."""
        return lookup("scheduler", self.schedulers(), name)

    def engines(self) -> Mapping[str, records.Engine]:
        """Return every engine adapter by name."""
        return self._provided("slipstream_engines", records.Engine)

    def engine(self, name: str) -> records.Engine:
        """Return the engine adapter called `name`, or raise UnknownRecordError."""
        return lookup("engine", self.engines(), name)

    def frameworks(self) -> Mapping[str, records.Framework]:
        """Return every framework adapter by name."""
        return self._provided("slipstream_frameworks", records.Framework)

    def framework(self, name: str) -> records.Framework:
        """Return the framework adapter called `name`, or raise UnknownRecordError."""
        return lookup("framework", self.frameworks(), name)

    def _provided(self, hook_name: str, record_type: type[_Record]) -> Mapping[str, _Record]:
        """Return the records of one provider hook, asked for once per set of plugins."""
        if hook_name not in self._records:
            self._records[hook_name] = collect(getattr(self.hook, hook_name), self._distributions, record_type)
        return self._records[hook_name]
