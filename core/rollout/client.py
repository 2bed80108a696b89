"""What a process that has requests keeps of them, and their way from place to place until each is answered."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from slipstream.core.rollout.messages import BLOCK_TOKENS, Answer, Placement, Request
from slipstream.core.rollout.prefix.blocks import block_keys

FAILURES = 3
"""Times a request is tried again after its server failed in the middle of it."""

_Output = TypeVar("_Output")


class Sample:
    """One run of an agent loop, whose requests are turns of trajectories."""

    def __init__(self, group: str | None) -> None:
        self.group = group
        self.name = uuid.uuid4().hex
        """For its trajectory where the framework has none."""

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


@dataclass(frozen=True, slots=True)
class Attempted(Generic[_Output]):
    """What came of a request at one server."""

    output: _Output
    answer: Answer
    aborted: bool
    """Whether it was stopped before it was complete."""


class Desk:
    """What the client of one process keeps: which requests it has, and the router's word that one was taken away.

    :param router: handle of the `service.RouterService` actor.
    """

    def __init__(self, router: Any) -> None:
        self._name = uuid.uuid4().hex
        self._router = router
        self._busy: set[str] = set()
        """Trajectories with a request under way."""

        self._numbers = itertools.count()
        self._attempts: dict[tuple[str, int], asyncio.Future[None]] = {}
        self._listener = asyncio.ensure_future(self._listen())

    def request(self, name: str, prompt_ids: list[int], group: str | None = None, movable: bool = True) -> Request:
        """Name a request of trajectory `name` of the current sample.

        Outside a sample, and beside another request of its trajectory, it is a trajectory of its own: nobody would say
        when that ends. `group` counts outside a sample.
        """
        sample = current.get()
        request_id = f"{self._name}-{next(self._numbers)}"
        trajectory = request_id if sample is None or name in self._busy else name
        first = sample is None or not sample.knows(trajectory)
        if sample is not None:
            group = sample.group
            if trajectory == name:
                sample.add(trajectory, self._router)
        blocks = np.array(block_keys(prompt_ids, BLOCK_TOKENS), np.uint64) if first else None
        return Request(self._name, request_id, trajectory, group, blocks, len(prompt_ids), movable)

    async def serve(
        self,
        request: Request,
        generate: Callable[[Placement, Sequence[_Output]], Coroutine[Any, Any, Attempted[_Output]]],
        goes_on: bool,
    ) -> list[_Output]:
        """Wait until the router admits a request, and return its attempts in order.

        :param generate: generates at a place what the attempts so far have left over.
        :param goes_on: whether a request that somebody else aborted goes on as well.
        :raises RuntimeError: when every server has failed.
        """
        router = self._router
        outputs: list[_Output] = []
        failures = 0
        self._busy.add(request.trajectory)
        try:
            placement: Placement | None = await router.acquire.remote(request)
            while placement is not None:
                try:
                    attempted = await self._attempt(placement, generate(placement, outputs))
                except Exception as error:
                    failures += 1
                    if not _server_is_gone(error) or failures > FAILURES:
                        raise
                    placement = await router.failed.remote(request.request_id, placement.attempt, str(error))
                    continue
                if attempted is None:
                    placement = await router.again.remote(request.request_id)
                    continue
                outputs.append(attempted.output)
                told = request.request_id, placement.attempt, attempted.answer
                if not attempted.aborted:
                    await router.answered.remote(*told)
                    break
                placement = await router.aborted.remote(*told, goes_on)
        except BaseException:
            router.cancel.remote(request.request_id)
            raise
        finally:
            self._busy.discard(request.trajectory)
            if request.trajectory == request.request_id:  # of its own, nobody else ends it
                router.end.remote([request.trajectory])
        return outputs

    async def _attempt(
        self, placement: Placement, call: Coroutine[Any, Any, Attempted[_Output]]
    ) -> Attempted[_Output] | None:
        """Generate at one server; None when the router took the attempt away and nothing came back so far."""
        task = asyncio.ensure_future(call)
        with self._taken(placement) as taken:
            try:
                both: set[asyncio.Future[Any]] = {task, taken}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not task.done():
                    task.cancel()
        return None if task.cancelled() or not task.done() else task.result()

    @contextlib.contextmanager
    def _taken(self, placement: Placement) -> Iterator[asyncio.Future[None]]:
        """Give a future that is done once the router has taken the attempt away."""
        key = placement.request_id, placement.attempt
        self._attempts[key] = asyncio.get_running_loop().create_future()
        try:
            yield self._attempts[key]
        finally:
            self._attempts.pop(key).cancel()

    async def _listen(self) -> None:
        while True:
            for key in await self._router.taken.remote(self._name):
                future = self._attempts.get(tuple(key))
                if future is not None and not future.done():
                    future.set_result(None)


def _server_is_gone(error: BaseException) -> bool:
    """Whether a replica failed, not the request. vLLM's class by name: this process need not have loaded vLLM."""
    import ray.exceptions

    names = {each.__name__ for each in type(error).__mro__}
    return isinstance(error, ray.exceptions.RayActorError) or "EngineDeadError" in names
