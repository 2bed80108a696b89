"""Drives a routing policy in asyncio, for live load balancers: the clock, the callers that wait, the aborts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from slipstream.core.rollout.policy import RoutingPolicyLike
from slipstream.core.rollout.requests import (
    Abort,
    Dispatch,
    LoadReport,
    ReplicaId,
    ReplicaLimits,
    RequestId,
    TrajectoryId,
    Turn,
    TurnResult,
)


class LiveRouter:
    """One event loop, one policy.

    A client asks `acquire` for a turn, waits until it is admitted, generates at the replica it is told, and says how
    that ended with `release`. After an abort, or when the replica was lost meanwhile (`release` returns False), it asks
    `reacquire` and goes on elsewhere with the tokens it has (`partial.continuation`).

    :param abort: called with the request to stop at a replica; must not block. The client's generation then ends as
        aborted.
    """

    def __init__(
        self, policy: RoutingPolicyLike, abort: Callable[[Abort], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.policy = policy
        self._abort = abort
        self._clock = clock
        self._waiters: dict[RequestId, asyncio.Future[Dispatch]] = {}
        self._dispatched: dict[RequestId, Dispatch] = {}
        """Decisions that nobody has asked for yet: a request that is bound again before its client noticed the loss."""
        self._scheduled = False
        self._timer: asyncio.Task[None] | None = None

    async def acquire(self, turn: Turn) -> Dispatch:
        """Wait until a turn is admitted and return where; cancelling gives the turn up."""
        self.policy.submit(turn, self._clock())
        return await self._wait(turn.request_id)

    async def reacquire(self, request_id: RequestId) -> Dispatch:
        """Wait until an aborted or lost request is bound again."""
        return await self._wait(request_id)

    def release(self, dispatch: Dispatch, result: TurnResult) -> bool:
        """Say how a dispatch ended; False when it had been taken away before, and `reacquire` tells the new place."""
        accepted = self.policy.finished(dispatch.request_id, dispatch.attempt, result, self._clock())
        self._schedule()
        return accepted

    def cancel(self, request_id: RequestId) -> None:
        """Give a turn up, wherever it is; who waits for it is cancelled."""
        self._dispatched.pop(request_id, None)
        waiter = self._waiters.pop(request_id, None)
        if waiter is not None:
            waiter.cancel()
        self.policy.cancel(request_id, self._clock())
        self._schedule()

    def fail(self, error: Exception) -> None:
        """Raise in everybody who waits: there is no replica to wait for."""
        for request_id, waiter in list(self._waiters.items()):
            del self._waiters[request_id]
            self.policy.cancel(request_id, self._clock())
            if not waiter.done():
                waiter.set_exception(error)

    def weights_changed(self, version: int) -> None:
        """Pass on that new weights are in place."""
        self.policy.weights_changed(version, self._clock())

    def progress(self, request_id: RequestId, output_tokens: int) -> None:
        """Pass on how far the current attempt is."""
        self.policy.progress(request_id, output_tokens, self._clock())
        self._schedule()

    def end_trajectory(self, trajectory: TrajectoryId) -> None:
        """Pass on that a trajectory has ended."""
        self.policy.end_trajectory(trajectory, self._clock())
        self._schedule()

    def add_replica(self, replica: ReplicaId, limits: ReplicaLimits) -> None:
        """Use a replica."""
        self.policy.add_replica(replica, limits, self._clock())
        self._schedule()

    def remove_replica(self, replica: ReplicaId) -> None:
        """Stop using a replica."""
        self.policy.remove_replica(replica, self._clock())
        self._schedule()

    def report(self, replica: ReplicaId, load: LoadReport) -> None:
        """Pass on what an engine says."""
        self.policy.report(replica, load, self._clock())
        self._schedule()

    def close(self) -> None:
        """Stop the timer and cancel who waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in self._waiters.values():
            waiter.cancel()
        self._waiters.clear()

    async def _wait(self, request_id: RequestId) -> Dispatch:
        ready = self._dispatched.pop(request_id, None)
        if ready is not None:
            return ready
        future: asyncio.Future[Dispatch] = asyncio.get_running_loop().create_future()
        self._waiters[request_id] = future
        self._schedule()
        try:
            return await future
        except asyncio.CancelledError:
            self._waiters.pop(request_id, None)
            self.policy.cancel(request_id, self._clock())
            self._schedule()
            raise

    def _schedule(self) -> None:
        """Poll once after everything that happens in this turn of the loop, so that a burst is ordered as a whole."""
        loop = asyncio.get_running_loop()
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._poll)
        if self._timer is None and self.policy.poll_seconds is not None:
            self._timer = loop.create_task(self._tick(self.policy.poll_seconds))

    async def _tick(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            self._poll()

    def _poll(self) -> None:
        self._scheduled = False
        for action in self.policy.poll(self._clock()):
            if isinstance(action, Abort):
                self._abort(action)
                continue
            waiter = self._waiters.pop(action.request_id, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(action)
            else:
                self._dispatched[action.request_id] = action
