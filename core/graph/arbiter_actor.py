"""The arbiter as a named Ray actor, and what a trainer calls. Ray is imported when one of the two is started."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from slipstream.core.graph.arbiter import Arbiter
from slipstream.core.graph.leases import Directive, Lease, Request

NAME = "slipstream_arbiter"
NAMESPACE = "slipstream"
_CHECK_SECONDS = 1.0
"""How often a caller that waits looks for leases that have expired, which nobody reports."""


class ArbiterServer:
    """`Arbiter` with a clock, and callers that can wait. An asyncio actor: one call runs at a time."""

    def __init__(self, quiet_seconds: float = 0.0, **options: Any) -> None:
        """Start with the options of `Arbiter`.

        Args:
            quiet_seconds: nothing is granted for so long, so that those who held leases of an arbiter that died can
                be adopted first. Also after Ray has restarted this one: half the time of a lease.
        """
        import ray

        self._arbiter = Arbiter(**options)
        if ray.is_initialized() and ray.get_runtime_context().was_current_actor_reconstructed:
            quiet_seconds = max(quiet_seconds, 0.5 * self._arbiter.lease_seconds)
        self._grants_from = time.monotonic() + quiet_seconds
        self._changed = asyncio.Event()

    async def ask(self, request: Request, wait_seconds: float = 0.0) -> Lease | None:
        """See `Arbiter.ask`; the answer may take `wait_seconds`, until there is a lease."""
        deadline = time.monotonic() + wait_seconds
        while True:
            now = time.monotonic()
            if now >= self._grants_from:
                before = self._arbiter.leases
                lease = self._arbiter.ask(request, now)
                if self._arbiter.leases != before:  # it may have served others, too
                    self._tell()
                if lease is not None:
                    return lease
            if now >= deadline:
                return None
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(deadline - now, _CHECK_SECONDS))

    async def renew(self, lease: int) -> Directive | None:
        """See `Arbiter.renew`."""
        return self._arbiter.renew(lease, time.monotonic())

    async def release(self, lease: int, workers: frozenset[int] | None = None) -> None:
        """See `Arbiter.release`."""
        self._arbiter.release(lease, time.monotonic(), workers)
        self._tell()

    async def adopt(self, request: Request, workers: frozenset[int]) -> Lease:
        """See `Arbiter.adopt`."""
        return self._arbiter.adopt(request, workers, time.monotonic())

    async def ask_now(self, request: Request) -> Lease | None:
        """See `Arbiter.ask`; the request is forgotten when it cannot be granted now."""
        if time.monotonic() < self._grants_from:
            return None
        lease = self._arbiter.ask(request, time.monotonic())
        if lease is None:
            self._arbiter.cancel(request.pipeline, request.lane, time.monotonic())
        return lease

    async def withdraw(self, pipeline: str) -> None:
        """See `Arbiter.withdraw`."""
        self._arbiter.withdraw(pipeline, time.monotonic())
        self._tell()

    async def pipelines(self) -> tuple[str, ...]:
        """Return the names of those who hold or wait for something."""
        held = {lease.request.pipeline for lease in self._arbiter.leases}
        return tuple(sorted(held | {each.request.pipeline for each in self._arbiter.waiting}))

    def _tell(self) -> None:
        """Wake everyone who waits."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def start_arbiter(**options: Any) -> Any:
    """Return the cluster's arbiter, started now if there is none; the options are those of `ArbiterServer`."""
    import ray

    actor = ray.remote(ArbiterServer)
    return actor.options(  # type: ignore[attr-defined, unused-ignore]
        name=NAME,
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_concurrency=1000,
    ).remote(**options)


@dataclass
class ArbiterClient:
    """A trainer's side. When the arbiter is gone, every question is answered as if the pipeline were alone: trainers
    go on in their own order, and try the arbiter again every `retry_seconds`."""

    actor: Any
    timeout_seconds: float = 10.0
    retry_seconds: float = 60.0
    reconnect: Callable[[], Any] | None = None
    """Returns the arbiter that has taken the place of one that died; None: there will be none."""
    _silent_until: float = field(default=0.0, init=False)

    def wait_ready(self, seconds: float) -> bool:
        """Return whether the arbiter answers; on a busy machine the process of a new one takes a while to start."""
        reachable, _ = self._call("pipelines", seconds=seconds)
        return reachable

    def ask(self, request: Request, patience_seconds: float = 5.0) -> Lease:
        """Wait for workers at a stage boundary; without an arbiter the lease is made up here and has id 0.

        Args:
            patience_seconds: of one call; they are repeated until there is a lease.

        Raises:
            LeaseError: the request cannot be granted.
        """
        while True:
            reachable, lease = self._call("ask", request, patience_seconds, seconds=patience_seconds)
            if not reachable:
                return Lease(0, request, request.wanted, 1.0, time.monotonic(), float("inf"))
            if lease is not None:
                found: Lease = lease
                return found

    def ask_now(self, request: Request) -> Lease | None:
        """Return a lease if there are workers at this moment; without an arbiter there are not."""
        reachable, lease = self._call("ask_now", request)
        return lease if reachable and isinstance(lease, Lease) else None

    def renew(self, lease: Lease) -> Directive | None:
        """Say that the holder lives; returns what it is asked to do.

        Raises:
            LeaseError: the lease has ended.
        """
        if lease.id == 0:
            return None
        _, directive = self._call("renew", lease.id)
        return directive if isinstance(directive, Directive) else None

    def adopt(self, lease: Lease) -> Lease:
        """Tell an arbiter what it does not know of: what this pipeline runs already.

        Raises:
            LeaseError: the pipeline has that lane already.
        """
        reachable, adopted = self._call("adopt", lease.request, lease.workers)
        return adopted if reachable and isinstance(adopted, Lease) else lease

    def release(self, lease: Lease, workers: frozenset[int] | None = None) -> None:
        """Give workers back."""
        if lease.id != 0:
            self._call("release", lease.id, workers)

    def withdraw(self, pipeline: str) -> None:
        """Give everything back."""
        self._call("withdraw", pipeline)

    def _call(self, method: str, *arguments: Any, seconds: float = 0.0) -> tuple[bool, Any]:
        """Return whether the arbiter could be reached, and its answer.

        Args:
            seconds: that the answer may take where all is well.
        """
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

        if time.monotonic() < self._silent_until:
            return False, None
        give_up = time.monotonic() + self.timeout_seconds
        while True:
            try:
                reference = getattr(self.actor, method).remote(*arguments)
                return True, ray.get(reference, timeout=self.timeout_seconds + seconds)
            except RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else error from error
            except GetTimeoutError:
                break
            except RayActorError:
                if self.reconnect is None or time.monotonic() > give_up:
                    break
                time.sleep(0.2)
                try:
                    self.actor = self.reconnect()
                except (ValueError, RayActorError):  # the name of the dead one is not free yet
                    continue
        self._silent_until = time.monotonic() + self.retry_seconds
        return False, None
