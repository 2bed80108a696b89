"""Which sample a request belongs to, and when its trajectory has ended: verl's clients know neither."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any


class Sample:
    """One run of an agent loop."""

    def __init__(self, group: str | None) -> None:
        self.group = group
        self._trajectories: dict[str, Any] = {}

    def add(self, trajectory: str, router: Any) -> None:
        """Take a trajectory that has a turn at `router`."""
        self._trajectories[trajectory] = router

    def knows(self, trajectory: str) -> bool:
        """Whether a trajectory has had a turn."""
        return trajectory in self._trajectories

    def end(self) -> None:
        """Tell the routers that the trajectories so far have no further turn."""
        ended, self._trajectories = self._trajectories, {}
        for router in dict.fromkeys(ended.values()):
            router.end.remote([name for name, its in ended.items() if its is router])


current: ContextVar[Sample | None] = ContextVar("slipstream_sample", default=None)
"""The sample that this task works on; tasks that it starts inherit it."""


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
