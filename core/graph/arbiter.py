"""The arbiter: grants workers to pipelines at stage boundaries. A state machine without clock, thread or framework.

Every call says what time it is. What holds at all times (`tests/core/graph/test_arbiter.py` checks it in virtual time):

- a worker has at most two leases, whose memory needs add up to 1 at most, one of which is a gang stage;
- no pipeline holds one lane while it waits for more of it, gangs get all workers or none, and rollouts can always be
  asked to pause: nobody waits in a circle;
- a request that was passed over `patience` times is served before any later one may take its workers;
- a holder that stops renewing loses its lease, so its death delays others by `lease_seconds` at most.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from slipstream.core.graph.advice import Advisor, FirstComeFirstServed
from slipstream.core.graph.errors import LeaseError
from slipstream.core.graph.leases import Directive, DirectiveKind, Lane, Lease, Request


@dataclass
class Waiting:
    """A request that was not granted yet."""

    request: Request
    since: float
    passed_over: int = 0
    """Grants since then that took workers it could have used."""


@dataclass
class Arbiter:
    """Who runs where."""

    workers: int | None = None
    """Workers are numbered from 0 to this; None where their numbers are names (`holder.worker_of`)."""
    lease_seconds: float = 60.0
    patience: int = 8
    corun: bool = True
    """Whether a rollout and a gang stage may share a worker."""
    advisor: Advisor = field(default_factory=FirstComeFirstServed)
    _waiting: dict[tuple[str, Lane], Waiting] = field(default_factory=dict, init=False)
    _leases: dict[int, Lease] = field(default_factory=dict, init=False)
    _directives: dict[int, Directive] = field(default_factory=dict, init=False)
    _granted: dict[tuple[str, Lane], Lease] = field(default_factory=dict, init=False)
    _ids: Iterable[int] = field(default_factory=lambda: itertools.count(1), init=False)

    def ask(self, request: Request, now: float) -> Lease | None:
        """Ask for workers, again and again until there is a lease; None means not yet.

        Asking again while waiting keeps the place in the queue; what is asked for may change. A grant that the
        caller has not heard of (a lost answer) is returned again.

        Raises:
            LeaseError: the request cannot ever be granted, or the pipeline has that lane already.
        """
        self._check(request)
        self.tick(now)
        key = (request.pipeline, request.lane)
        if key in self._granted:
            lease = self._granted[key]
            if lease.request == request:
                return lease
            raise LeaseError(
                f"{request.pipeline}: expected no {request.lane.value} lease, found lease {lease.id} for "
                f"{lease.request.kind}; release it before asking for {request.kind}"
            )
        waiting = self._waiting.setdefault(key, Waiting(request, now))
        waiting.request = request
        self._grant(now)
        return self._granted.get(key)

    def renew(self, lease: int, now: float) -> Directive | None:
        """Say that a holder lives; returns what it is asked to do, until it has done it.

        Raises:
            LeaseError: the lease has ended; the workers may belong to somebody else.
        """
        self.tick(now)
        held = self._held(lease)
        self._replace(replace(held, expires=now + self.lease_seconds))
        return self._directives.get(lease)

    def release(self, lease: int, now: float, workers: frozenset[int] | None = None) -> None:
        """Give workers back, all or some. Of a lease that has ended already nothing happens.

        Raises:
            LeaseError: some of the workers are not the lease's.
        """
        held = self._leases.get(lease)
        if held is not None:
            given = held.workers if workers is None else workers
            if not given <= held.workers:
                raise LeaseError(
                    f"lease {lease}: expected workers of {sorted(held.workers)}, got {sorted(given)}; release its own"
                )
            if given == held.workers:
                self._end(held)
            else:
                self._replace(replace(held, workers=held.workers - given))
                directive = self._directives.get(lease)
                if directive is not None and self._leases[lease].workers <= directive.workers:
                    del self._directives[lease]
        self.tick(now)

    def cancel(self, pipeline: str, lane: Lane, now: float) -> None:
        """Forget a request that waits; nothing happens when there is none, or when it has been granted."""
        self._waiting.pop((pipeline, lane), None)
        self.tick(now)

    def withdraw(self, pipeline: str, now: float) -> None:
        """Forget a pipeline: its request and its leases."""
        for key in [key for key in self._waiting if key[0] == pipeline]:
            del self._waiting[key]
        for lease in [each for each in self._leases.values() if each.request.pipeline == pipeline]:
            self._end(lease)
        self.tick(now)

    def adopt(self, request: Request, workers: frozenset[int], now: float) -> Lease:
        """Take over what a pipeline has been running since before this arbiter started, whether or not it fits.

        Raises:
            LeaseError: the pipeline has that lane already.
        """
        key = (request.pipeline, request.lane)
        if key in self._granted:
            raise LeaseError(f"{request.pipeline}: expected no {request.lane.value} lease to adopt beside, found one")
        self._waiting.pop(key, None)
        return self._new(request, workers, now)

    def tick(self, now: float) -> None:
        """End leases whose holders are silent, and grant what has become possible."""
        for lease in [each for each in self._leases.values() if each.expires <= now]:
            self._end(lease)
        self._grant(now)

    @property
    def leases(self) -> tuple[Lease, ...]:
        """Every lease."""
        return tuple(self._leases.values())

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """Every request that waits, the oldest first."""
        return tuple(sorted(self._waiting.values(), key=lambda each: each.since))

    def free_for(self, request: Request) -> frozenset[int]:
        """Return the wanted workers that the request could share or have now."""
        return frozenset(worker for worker in request.wanted if self._fits(request, worker))

    def _fits(self, request: Request, worker: int) -> bool:
        beside = [lease for lease in self._leases.values() if worker in lease.workers]
        if not beside:
            return True
        if len(beside) > 1 or not self.corun or beside[0].request.lane == request.lane:
            return False
        return beside[0].request.memory + request.memory <= 1.0 + 1e-9

    def _grant(self, now: float) -> None:
        while True:
            order = self.advisor.order(self.waiting, self.leases, now)
            overdue = [each for each in self.waiting if each.passed_over >= self.patience]
            queue = overdue + [each for each in order if each not in overdue]
            chosen = None
            reserved: frozenset[int] = frozenset()
            for each in queue:
                free = self.free_for(each.request) - reserved
                workers = self.advisor.workers(each.request, free, self.leases)
                if len(workers) >= each.request.least and workers <= free:
                    chosen = each, workers
                    break
                if each in overdue:
                    reserved |= each.request.wanted
                    self._make_room(each.request)
                elif each.request.lane is Lane.GANG and not self.corun:
                    self._make_room(each.request)
            if chosen is None:
                return
            granted, workers = chosen
            del self._waiting[(granted.request.pipeline, granted.request.lane)]
            for other in self._waiting.values():
                if other.since <= granted.since and other.request.wanted & workers:
                    other.passed_over += 1
            self._new(granted.request, workers, now)

    def _make_room(self, request: Request) -> None:
        """Ask every rollout that is in the way to pause."""
        for lease in self._leases.values():
            if lease.request.lane is Lane.ROLLOUT and any(
                worker in lease.workers and not self._fits(request, worker) for worker in request.wanted
            ):
                self._directives[lease.id] = Directive(DirectiveKind.PAUSE, lease.id)

    def direct(self, directive: Directive) -> None:
        """Ask a holder of a rollout lease to do something; it hears of it when it renews.

        Raises:
            LeaseError: there is no such rollout lease.
        """
        held = self._held(directive.lease)
        if held.request.lane is not Lane.ROLLOUT:
            raise LeaseError(
                f"lease {held.id}: expected a rollout, found {held.request.kind}, which is not interrupted"
            )
        self._directives[held.id] = directive

    def _new(self, request: Request, workers: frozenset[int], now: float) -> Lease:
        shared = any(workers & lease.workers for lease in self._leases.values())
        share = self.advisor.share(request) if shared else 1.0
        lease = Lease(next(iter(self._ids)), request, workers, share, now, now + self.lease_seconds)
        self._leases[lease.id] = lease
        self._granted[(request.pipeline, request.lane)] = lease
        return lease

    def _replace(self, lease: Lease) -> None:
        self._leases[lease.id] = lease
        self._granted[(lease.request.pipeline, lease.request.lane)] = lease

    def _end(self, lease: Lease) -> None:
        del self._leases[lease.id]
        self._directives.pop(lease.id, None)
        del self._granted[(lease.request.pipeline, lease.request.lane)]

    def _held(self, lease: int) -> Lease:
        held = self._leases.get(lease)
        if held is None:
            raise LeaseError(
                f"lease {lease}: expected a lease that is held, found none (it ended or expired); stop using its "
                "workers and ask again"
            )
        return held

    def _check(self, request: Request) -> None:
        most = None if self.workers is None else self.workers - 1
        if not request.wanted or min(request.wanted) < 0 or (most is not None and max(request.wanted) > most):
            some = "some workers" if most is None else f"workers from 0 to {most}"
            raise LeaseError(f"{request.pipeline}: expected {some}, got {sorted(request.wanted)}")
        if not 1 <= request.least <= len(request.wanted):
            raise LeaseError(
                f"{request.pipeline}: expected 1 to {len(request.wanted)} workers at least, got {request.least}"
            )
        if request.lane is Lane.GANG and request.least != len(request.wanted):
            raise LeaseError(f"{request.pipeline}: expected a gang to need all of its workers, got {request.least}")
        if not 0.0 <= request.memory <= 1.0:
            raise LeaseError(f"{request.pipeline}: expected a share of memory up to 1, got {request.memory}")
