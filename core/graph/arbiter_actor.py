"""The arbiter as a named Ray actor, and what a trainer calls. Ray is imported when one of the two is started."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from slipstream.core.graph.arbiter import Arbiter
from slipstream.core.graph.leases import Directive, Lease, Request

NAME = "slipstream_arbiter"
NAMESPACE = "slipstream"


class ArbiterServer:
    """`Arbiter` with a clock."""

    def __init__(self, **options: Any) -> None:
        """Start with the options of `Arbiter`."""
        self._arbiter = Arbiter(**options)

    def ask(self, request: Request) -> Lease | None:
        """See `Arbiter.ask`."""
        return self._arbiter.ask(request, time.monotonic())

    def renew(self, lease: int) -> Directive | None:
        """See `Arbiter.renew`."""
        return self._arbiter.renew(lease, time.monotonic())

    def release(self, lease: int, workers: frozenset[int] | None = None) -> None:
        """See `Arbiter.release`."""
        self._arbiter.release(lease, time.monotonic(), workers)

    def adopt(self, request: Request, workers: frozenset[int]) -> Lease:
        """See `Arbiter.adopt`."""
        return self._arbiter.adopt(request, workers, time.monotonic())

    def withdraw(self, pipeline: str) -> None:
        """See `Arbiter.withdraw`."""
        self._arbiter.withdraw(pipeline, time.monotonic())


def start_arbiter(**options: Any) -> Any:
    """Return the cluster's arbiter, started now if there is none; the options are those of `Arbiter`."""
    import ray

    actor = ray.remote(ArbiterServer)
    return actor.options(name=NAME, namespace=NAMESPACE, get_if_exists=True, lifetime="detached", num_cpus=0).remote(
        **options
    )


@dataclass
class ArbiterClient:
    """A trainer's side. When the arbiter is gone, every question is answered as if the pipeline were alone: trainers
    go on in their own order, and try the arbiter again every `retry_seconds`."""

    actor: Any
    timeout_seconds: float = 10.0
    retry_seconds: float = 60.0
    _silent_until: float = field(default=0.0, init=False)

    def ask(self, request: Request, patience_seconds: float = 0.5) -> Lease:
        """Wait for workers at a stage boundary; without an arbiter the lease is made up here and has id 0.

        Raises:
            LeaseError: the request cannot be granted.
        """
        while True:
            reachable, lease = self._call("ask", request)
            if not reachable:
                return Lease(0, request, request.wanted, 1.0, time.monotonic(), float("inf"))
            if lease is not None:
                found: Lease = lease
                return found
            time.sleep(patience_seconds)

    def renew(self, lease: Lease) -> Directive | None:
        """Say that the holder lives; returns what it is asked to do.

        Raises:
            LeaseError: the lease has ended.
        """
        if lease.id == 0:
            return None
        _, directive = self._call("renew", lease.id)
        return directive if isinstance(directive, Directive) else None

    def release(self, lease: Lease, workers: frozenset[int] | None = None) -> None:
        """Give workers back."""
        if lease.id != 0:
            self._call("release", lease.id, workers)

    def _call(self, method: str, *arguments: Any) -> tuple[bool, Any]:
        """Return whether the arbiter could be reached, and its answer."""
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

        if time.monotonic() < self._silent_until:
            return False, None
        try:
            return True, ray.get(getattr(self.actor, method).remote(*arguments), timeout=self.timeout_seconds)
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from error
        except (RayActorError, GetTimeoutError):
            self._silent_until = time.monotonic() + self.retry_seconds
            return False, None
