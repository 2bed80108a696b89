"""The agent loop of `tool_wait`, in a module of its own because verl's is still being imported when that one runs."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

from slipstream.plugins.verl.cpu.agent_loop import SeededSingleTurnAgentLoop, sample_seed

LONG_SHARE = 1 / 16


class ToolWaitLoop(SeededSingleTurnAgentLoop):
    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> Any:
        output = await super().run(sampling_params, priority=priority, **kwargs)
        seed = sample_seed(11, int(kwargs["global_steps"]), int(kwargs["index"]), int(kwargs["session_id"]))
        longest = float(os.environ["TOOL_SECONDS"])
        await asyncio.sleep(longest if random.Random(seed).random() < LONG_SHARE else 0.5 * longest)
        return output
