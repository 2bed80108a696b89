"""An external module for verl (`VERL_USE_EXTERNAL_MODULES`): samples that wait for their environment.

Registers the agent loop `tool_wait`: a seeded turn, then a wait that follows from the sample alone, as for a test run
in a sandbox; no core of this machine has anything to do meanwhile. TOOL_SECONDS is the longest wait; most take half.
"""

from __future__ import annotations

from typing import Any

from slipstream.plugins.verl.post_import import after_import


def _register(module: Any) -> None:
    module._agent_loop_registry["tool_wait"] = {"_target_": "tool_wait_loop.ToolWaitLoop"}


after_import("verl.experimental.agent_loop.agent_loop", _register)
