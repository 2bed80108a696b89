"""``slipstream demo``: hands over to the demo of a framework plugin."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from slipstream.core.cli.interrupts import interrupts
from slipstream.core.hooks import Framework, PluginError, plugins


def run(framework: str, model: str | None, arguments: Sequence[str]) -> int:
    """Run the demo of `framework`, or of the first one that has a demo, and return its exit status.

    A demo that a signal interrupts ends with 130, after it has cleaned up.

    :raises PluginError: when there is no such demo.
    """
    chosen = plugins().framework(framework) if framework else _first_with_demo()
    if chosen.demo is None:
        raise PluginError(f"the plugin of framework {chosen.name!r} has no demo; {_which()}")
    try:
        with interrupts():
            return chosen.demo(model=model, arguments=list(arguments)) or 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _first_with_demo() -> Framework:
    for framework in plugins().frameworks().values():
        if framework.demo is not None:
            return framework
    raise PluginError(f"no installed slipstream plugin has a demo; {_which()}")


def _which() -> str:
    having = [framework.name for framework in plugins().frameworks().values() if framework.demo is not None]
    return f"frameworks with a demo: {', '.join(having) or 'none'}"
