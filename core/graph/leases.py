"""What the arbiter and its callers exchange: requests, leases and what a holder is asked to do."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Lane(enum.Enum):
    """What a lease is for. A pipeline has at most one lease a lane; synchronous ones use one lane at a time."""

    ROLLOUT = "rollout"
    """Can be paused or moved at any time, and holds single workers."""
    GANG = "gang"
    """Log-prob, train or sync: needs all of its workers at once and is not interrupted."""


class DirectiveKind(enum.Enum):
    """What a holder of a rollout lease is asked to do; the action vocabulary of the scheduler, seen from a pipeline."""

    PAUSE = "pause"
    """Abort what runs on the workers, keep what was generated, release them."""
    MERGE = "merge"
    """Move unfinished requests onto the workers named, release the others."""
    EXPAND = "expand"
    """The lease now covers the workers named; requests may move there."""
    RESIZE_SHARE = "resize share"
    """Use another share of the workers."""


@dataclass(frozen=True)
class Request:
    """A pipeline asks for workers at a stage boundary."""

    pipeline: str
    lane: Lane
    kind: str
    """For people and traces: rollout, log-prob, train, sync."""
    wanted: frozenset[int]
    """The workers it could use."""
    least: int
    """Fewer of them are of no use; a gang needs all."""
    memory: float
    """Share of each worker's memory that it needs at least."""
    remaining: float = 0.0
    """Seconds that the pipeline is predicted to need alone until its end; 0 when it cannot tell."""


@dataclass(frozen=True)
class Lease:
    """The right to run on some workers until it ends."""

    id: int
    request: Request
    workers: frozenset[int]
    share: float
    """Of each worker, for what can limit itself (MPS percentage, green context); 1 beside nobody."""
    since: float
    expires: float
    """Clock reading; a holder that does not renew until then counts as dead."""


@dataclass(frozen=True)
class Directive:
    """What a holder is asked to do with a lease."""

    kind: DirectiveKind
    lease: int
    workers: frozenset[int] = frozenset()
    share: float = 1.0
