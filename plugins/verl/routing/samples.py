"""Which sample a request belongs to, and when its trajectory has ended: verl's clients know neither."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from slipstream.core.rollout.client import Sample, current


def in_samples(run_agent_loop: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `AgentLoopWorker._run_agent_loop`: a trajectory has ended when its loop has, before rewards are computed."""

    @functools.wraps(run_agent_loop)
    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "_agent_loop_postprocess" not in vars(self):
            self._agent_loop_postprocess = _ending(self._agent_loop_postprocess)
        uid = kwargs.get("uid")
        sample = Sample(None if uid is None else str(uid))
        token = current.set(sample)
        try:
            return await run_agent_loop(self, *args, **kwargs)
        finally:
            current.reset(token)
            sample.end()

    return run


def _ending(postprocess: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(postprocess)
    async def end_then(*args: Any, **kwargs: Any) -> Any:
        sample = current.get()
        if sample is not None:
            sample.end()
        return await postprocess(*args, **kwargs)

    return end_then
