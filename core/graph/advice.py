"""Who should be granted workers next: the part of the arbiter that a scheduler replaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from slipstream.core.graph.leases import Lane, Lease, Request

if TYPE_CHECKING:
    from slipstream.core.graph.arbiter import Waiting


class Advisor(Protocol):
    """Orders what the arbiter could grant. Whatever it says, the arbiter keeps its promises."""

    def order(self, waiting: Sequence[Waiting], leases: Sequence[Lease], now: float) -> Sequence[Waiting]:
        """Return the requests that should be tried, the first one first; those left out hold."""

    def workers(self, request: Request, free: frozenset[int], leases: Sequence[Lease]) -> frozenset[int]:
        """Return which of the free workers a request should get; fewer than it needs to hold it back."""

    def share(self, request: Request) -> float:
        """Return the share of a worker for a request that runs beside another."""


class FirstComeFirstServed:
    """Whoever has waited longest goes first and gets everything that is free; gangs before rollouts."""

    def order(self, waiting: Sequence[Waiting], leases: Sequence[Lease], now: float) -> Sequence[Waiting]:
        """Return gangs by age, then rollouts by age."""
        return sorted(waiting, key=lambda each: (each.request.lane is not Lane.GANG, each.since))

    def workers(self, request: Request, free: frozenset[int], leases: Sequence[Lease]) -> frozenset[int]:
        """Return all of them."""
        return free

    def share(self, request: Request) -> float:
        """Return a quarter for decode, which is bound by memory, and three quarters for compute."""
        return 0.25 if request.lane is Lane.ROLLOUT else 0.75


class LongestPathFirst(FirstComeFirstServed):
    """Gangs before rollouts, as the greedy rule has it, and whoever has most left to do first: the last end counts."""

    def order(self, waiting: Sequence[Waiting], leases: Sequence[Lease], now: float) -> Sequence[Waiting]:
        """Return gangs, then rollouts, each by the seconds left, the longest first; equals by age."""
        return sorted(
            waiting, key=lambda each: (each.request.lane is not Lane.GANG, -each.request.remaining, each.since)
        )
