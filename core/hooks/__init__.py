"""slipstream's plugin interface: specifications, the records they exchange and the plugin manager.

A plugin is a module or an object whose functions are marked with `hookimpl`; a distribution announces it in the entry
point group ``slipstream``.
"""

from slipstream.core.hooks.errors import PluginConflictError, PluginError, PluginLoadError, UnknownRecordError
from slipstream.core.hooks.events import RolloutFinished, Stage, WeightSyncFinished, WeightSyncStarted
from slipstream.core.hooks.manager import SlipstreamPlugins
from slipstream.core.hooks.markers import hookimpl, hookspec
from slipstream.core.hooks.process import plugins, stage_hooks
from slipstream.core.hooks.records import Codec, Drafter, Engine, Framework, RoutingPolicy, Scheduler, Transport

__all__ = [
    "Codec",
    "Drafter",
    "Engine",
    "Framework",
    "PluginConflictError",
    "PluginError",
    "PluginLoadError",
    "RolloutFinished",
    "RoutingPolicy",
    "Scheduler",
    "SlipstreamPlugins",
    "Stage",
    "Transport",
    "UnknownRecordError",
    "WeightSyncFinished",
    "WeightSyncStarted",
    "hookimpl",
    "hookspec",
    "plugins",
    "stage_hooks",
]
