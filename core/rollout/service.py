"""The router of a run: a routing policy behind the calls of clients, to be run as a Ray actor.

A client (`client.Desk`) asks for a place, generates there, and says how that ended. Servers are Ray actors with
`slipstream_report` and `slipstream_abort`; the router asks each how it is twice a second.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from slipstream.core.config import RouterConfig
from slipstream.core.hooks import plugins
from slipstream.core.rollout.live import LiveRouter
from slipstream.core.rollout.measures import StepMeasures
from slipstream.core.rollout.messages import Answer, EngineReport, Placement, Request
from slipstream.core.rollout.requests import Abort, Dispatch, ReplicaId, TurnResult
from slipstream.core.rollout.router import CacheAwareRouter
from slipstream.core.rollout.settings import RouterSettings
from slipstream.core.rollout.trajectories import Trajectories

_logger = logging.getLogger("slipstream")

REPORT_SECONDS = 0.5
ABORT_SECONDS = 10.0
"""A server that does not confirm an abort for so long is not waited for."""

CALLS_AT_ONCE = 1_000_000
"""Every request that waits for admission is a call under way."""


@dataclass(slots=True)
class _Waiting:
    """A request from its first call to its answer."""

    request: Request
    since: float
    dispatch: Dispatch | None = None


class RouterService:
    """What clients and servers of any framework ask and tell.

    :param servers: server actors by name.
    """

    def __init__(self, servers: dict[str, Any], settings: RouterConfig) -> None:
        import ray.exceptions

        self._failures = ray.exceptions.RayError, asyncio.TimeoutError
        factory = plugins().routing_policy(settings.mode).factory
        self._policy: CacheAwareRouter = factory(
            RouterSettings(
                weights=settings.weights,
                stall_seconds=settings.stall_seconds,
                move_seconds=settings.move_seconds,
                seed=settings.seed,
            )
        )
        self._live = LiveRouter(self._policy, self._abort)
        self._measures = StepMeasures()
        self._counts = dataclasses.replace(self._policy.counts)
        self._joining: dict[str, Any] = dict(servers)
        """Servers whose capacity is not known yet."""

        self._servers: dict[str, Any] = {}
        self._handles: dict[str, Any] = {}
        """Of servers that left as well, so that their requests can be aborted."""

        self._failed: dict[str, str] = {}
        self._lock: asyncio.Lock | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._trajectories = Trajectories()
        self._attempts: dict[int, str] = {}
        """Requests of the attempts that count."""

        self._decoded: dict[int, int] = {}
        """Output tokens of these, as of the last report."""

        self._asked: set[int] = set()
        """Attempts that this router wants aborted."""

        self._notices: dict[str, asyncio.Queue[tuple[str, int]]] = {}
        self._nonce = uuid.uuid4().hex[:8]
        self._version: int | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- requests of clients ------------------------------------------------------------------------------------------

    async def acquire(self, request: Request) -> Placement:
        """Wait until a turn is admitted and say where it goes.

        :raises RuntimeError: when every server there was has failed.
        """
        await self._ready()
        turn = self._trajectories.turn(request)
        waiting = self._waiting[request.request_id] = _Waiting(request, time.monotonic())
        try:
            dispatch = await self._live.acquire(turn)
        except BaseException:
            self._waiting.pop(request.request_id, None)
            raise
        self._measures.admitted(time.monotonic() - waiting.since, self._policy.waiting)
        return self._placed(waiting, dispatch)

    async def again(self, request_id: str) -> Placement:
        """Wait for the next place of a request whose attempt was taken away."""
        if not self._servers and not self._joining and self._failed:
            raise self._nobody_left()
        return self._placed(self._waiting[request_id], await self._live.reacquire(request_id))

    async def aborted(self, request_id: str, attempt: int, answer: Answer, goes_on: bool) -> Placement | None:
        """Take what an aborted attempt had produced and say where the request goes on; None when it does not.

        :param goes_on: whether it does after an abort that was not this router's as well.
        """
        waiting = self._waiting[request_id]
        counts = attempt in self._attempts
        asked = attempt in self._asked
        if counts and not asked and not goes_on:
            await self.answered(request_id, attempt, answer)
            return None
        if counts and not asked and not answer.output_tokens:
            await asyncio.sleep(1)  # a server that refuses; do not ask it over and over
        self._take(waiting, answer)
        self._forget(attempt)
        assert waiting.dispatch is not None
        result = TurnResult(answer.output_tokens, aborted=True)
        if not self._live.release(waiting.dispatch, result):
            self._policy.salvaged(waiting.request.trajectory, request_id, answer.output_tokens)
        return await self.again(request_id)

    async def failed(self, request_id: str, attempt: int, reason: str) -> Placement:
        """Hear that a server failed in the middle of a request, and say where the request is done again."""
        waiting = self._waiting[request_id]
        dispatch = waiting.dispatch
        assert dispatch is not None
        server = self._servers.get(str(dispatch.replica))
        if attempt in self._attempts and server is not None:
            try:
                self._hear(str(dispatch.replica), await asyncio.wait_for(_report_of(server), ABORT_SECONDS))
            except self._failures:
                self._lose(str(dispatch.replica), reason)
            else:
                self._live.release(dispatch, TurnResult(0, aborted=True))
        self._forget(attempt)
        return await self.again(request_id)

    async def answered(self, request_id: str, attempt: int, answer: Answer) -> None:
        """Take the end of a request."""
        waiting = self._waiting.pop(request_id)
        self._take(waiting, answer)
        assert waiting.dispatch is not None
        self._forget(attempt)
        # An answer that counts no more (its replica seemed lost) is the client's all the same: nobody else answers.
        if not self._live.release(
            waiting.dispatch, TurnResult(answer.output_tokens, cached_tokens=answer.cached_tokens)
        ):
            self._live.cancel(request_id)

    async def cancel(self, request_id: str) -> None:
        """Forget a request that its client gave up."""
        waiting = self._waiting.pop(request_id, None)
        self._live.cancel(request_id)
        if waiting is not None and waiting.dispatch is not None:
            self._forget(waiting.dispatch.attempt)

    async def end(self, trajectories: list[str]) -> None:
        """Hear that trajectories have no further turn."""
        for trajectory in trajectories:
            self._trajectories.end(trajectory)
            self._live.end_trajectory(trajectory)

    async def taken(self, client: str) -> list[tuple[str, int]]:
        """Wait until attempts of a client are lost with their servers, and name them (request, attempt)."""
        queue = self._notices.setdefault(client, asyncio.Queue())
        found = [await queue.get()]
        while not queue.empty():
            found.append(queue.get_nowait())
        return found

    async def take_metrics(self) -> dict[str, float]:
        """Return what happened since the last call; to be asked once a step."""
        servers = dict(self._servers)
        asked = (asyncio.wait_for(_report_of(server), ABORT_SECONDS) for server in servers.values())
        reports = await asyncio.gather(*asked, return_exceptions=True)
        for name, report in zip(servers, reports, strict=True):
            if isinstance(report, EngineReport):
                self._hear(name, report)
        values = self._measures.take()
        counts, told = self._policy.counts, self._counts
        if values:
            for name in ("parked", "return_moves", "migrations", "evacuated"):
                values[name] = getattr(counts, name) - getattr(told, name)
            values["replicas"] = len(self._servers)
            self._counts = dataclasses.replace(counts)
        return values

    # -- servers ------------------------------------------------------------------------------------------------------

    async def add_servers(self, servers: dict[str, Any]) -> None:
        """Use servers from now on."""
        self._joining.update({name: handle for name, handle in servers.items() if name not in self._servers})
        await self._ready()

    async def remove_servers(self, server_ids: list[str]) -> None:
        """Stop using servers; their requests go on elsewhere with what they have."""
        for name in server_ids:
            self._joining.pop(name, None)
            if self._servers.pop(name, None) is not None:
                self._measures.left(name)
                self._live.remove_replica(name)

    async def get_all_servers(self) -> list[str]:
        """Name the servers, those whose capacity is not known yet as well."""
        return [*self._servers, *self._joining]

    async def get_status(self) -> dict[str, Any]:
        """Count requests by server; `waiting` ones have no server yet, `trajectories` have not ended."""
        loads = self._loads()
        return {
            "servers": loads,
            "total_inflight": sum(loads.values()),
            "active_servers": len(loads),
            "registered_handles": list(self._servers),
            "waiting": self._policy.waiting,
            "trajectories": len(self._trajectories),
        }

    async def _ready(self) -> None:
        """Ask new servers for their capacity, and watch them from then on."""
        if self._lock is None:
            self._lock = asyncio.Lock()
            self._start(self._sample())
        if self._joining:
            async with self._lock:
                joining = dict(self._joining)
                reports = await asyncio.gather(*map(_report_of, joining.values()))
                for name, report in zip(joining, reports, strict=True):
                    server = self._joining.pop(name, None)
                    if server is None:
                        continue
                    self._servers[name] = self._handles[name] = server
                    self._failed.pop(name, None)
                    self._measures.joined(name)
                    self._live.add_replica(name, report.limits)
                    self._start(self._watch(name, server))
        if not self._servers and self._failed:
            raise self._nobody_left()

    async def _watch(self, name: str, server: Any) -> None:
        while self._servers.get(name) is server:
            await asyncio.sleep(REPORT_SECONDS)
            try:
                report = await _report_of(server)
            except self._failures as error:
                if self._servers.get(name) is server:
                    self._lose(name, str(error))
                return
            if self._servers.get(name) is server:
                self._hear(name, report)

    def _hear(self, name: str, report: EngineReport) -> None:
        self._learn(report.version)
        if report.active:  # a stalled engine's server still answers
            limits = report.limits
            load = dataclasses.replace(report.load, kv_tokens=limits.kv_tokens, max_running=limits.max_running)
            self._live.report(name, load)
        for engine_id, tokens in report.progress.items():
            if not engine_id.startswith(self._nonce):
                continue
            attempt = int(engine_id[len(self._nonce) :], 16)
            request_id = self._attempts.get(attempt)
            if request_id is not None and tokens != self._decoded.get(attempt, 0):
                self._decoded[attempt] = tokens
                self._live.progress(request_id, tokens)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            if self._waiting:
                self._measures.sample(self._policy.waiting, self._loads())

    def _lose(self, name: str, reason: str) -> None:
        """A server has failed: what it had is done again elsewhere."""
        if self._servers.pop(name, None) is None:
            return
        _logger.error("slipstream: rollout server %s failed, its requests go to the others: %s", name, reason)
        self._failed[name] = reason
        self._measures.left(name)
        self._live.remove_replica(name)
        if not self._servers and not self._joining:
            self._live.fail(self._nobody_left())

    def _nobody_left(self) -> RuntimeError:
        listed = "; ".join(f"{name}: {reason}" for name, reason in self._failed.items())
        return RuntimeError(f"no rollout server is left, each has failed; their logs say why. {listed}")

    def _abort(self, abort: Abort) -> None:
        if abort.taken:
            self._forget(abort.attempt)
        else:
            self._asked.add(abort.attempt)
        self._start(self._stop(abort))

    async def _stop(self, abort: Abort) -> None:
        waiting = self._waiting.get(str(abort.request_id))
        try:
            server = self._handles[str(abort.replica)]
            await asyncio.wait_for(_abort_at(server, self._engine_id(abort.attempt)), ABORT_SECONDS)
        except self._failures:
            if abort.taken and waiting is not None:
                queue = self._notices.setdefault(waiting.request.client, asyncio.Queue())
                queue.put_nowait((waiting.request.request_id, abort.attempt))

    # -- bookkeeping --------------------------------------------------------------------------------------------------

    def _placed(self, waiting: _Waiting, dispatch: Dispatch) -> Placement:
        waiting.dispatch = dispatch
        request_id, replica = waiting.request.request_id, str(dispatch.replica)
        self._attempts[dispatch.attempt] = request_id
        engine_id = self._engine_id(dispatch.attempt)
        return Placement(request_id, dispatch.attempt, replica, self._handles[replica], engine_id, dispatch.priority)

    def _engine_id(self, attempt: int) -> str:
        return f"{self._nonce}{attempt:024x}"

    def _take(self, waiting: _Waiting, answer: Answer) -> None:
        self._learn(answer.version)
        assert waiting.dispatch is not None
        tokens = answer.prompt_tokens, answer.output_tokens
        known = self._trajectories.computed(waiting.request.trajectory, *tokens)
        self._measures.answered(
            waiting.dispatch.replica, answer.prompt_tokens, answer.cached_tokens, answer.output_tokens, known
        )

    def _learn(self, version: int | None) -> None:
        """New weights: cached prefixes are gone, and lengths so far are the last step's."""
        if version is None or (self._version is not None and version <= self._version):
            return
        if self._version is not None:
            self._live.weights_changed(version)
            self._policy.start_step()
            self._trajectories.weights_changed()
        self._version = version

    def _forget(self, attempt: int) -> None:
        self._attempts.pop(attempt, None)
        self._decoded.pop(attempt, None)
        self._asked.discard(attempt)

    def _loads(self) -> dict[ReplicaId, int]:
        return {name: state.in_flight for name, state in self._policy.replicas.items()}

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _logger.error("slipstream: the router's own work failed", exc_info=task.exception())


async def _report_of(server: Any) -> EngineReport:
    report: EngineReport = await server.slipstream_report.remote()
    return report


async def _abort_at(server: Any, engine_id: str) -> None:
    await server.slipstream_abort.remote(engine_id)
