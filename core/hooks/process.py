"""The plugins of this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from slipstream.core.hooks.errors import PluginError
from slipstream.core.hooks.events import Stage
from slipstream.core.hooks.manager import SlipstreamPlugins

_lock = threading.RLock()
_loading = False
_plugins: SlipstreamPlugins | None = None


def plugins() -> SlipstreamPlugins:
    """Return the plugins of this process: the built-in ones and every installed one, loaded by the first call.

    :raises PluginError: when a plugin cannot be loaded, or asks for the plugins while it is being loaded.
    """
    global _loading, _plugins
    with _lock:
        if _plugins is None:
            if _loading:
                raise PluginError("a plugin called plugins() while it was being loaded; call it from a hook instead")
            _loading = True
            try:
                _plugins = SlipstreamPlugins.installed()
            finally:
                _loading = False
        return _plugins


@contextlib.contextmanager
def stage_hooks(stage: Stage) -> Iterator[None]:
    """Tell all plugins that `stage` starts and, unless it fails, that it has finished."""
    hook = plugins().hook
    hook.slipstream_stage_started(stage=stage)
    yield
    hook.slipstream_stage_finished(stage=stage)
