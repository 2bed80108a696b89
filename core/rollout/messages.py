"""What the processes of a run tell each other about requests: clients, the router, and the servers of engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.core.rollout.requests import LoadReport, ReplicaLimits

BLOCK_TOKENS = 16
"""Granularity at which shared prefixes are found; not the engine's."""

REMEMBERED_ABORTS = 4096
"""Aborts of requests that have not reached their engine yet, at most, that a server keeps in mind."""


@dataclass(frozen=True, slots=True)
class Request:
    """A turn that wants a place; the client asks the router."""

    client: str
    """Who waits for it."""

    request_id: str
    """Unique in the run; kept from attempt to attempt."""

    trajectory: str
    group: str | None
    """Samples of one prompt; None to tell by the prompt."""

    blocks: npt.NDArray[np.uint64] | None
    """uint64[whole blocks], the keys of a first turn's prompt; None for later turns."""

    tokens: int
    """Length of the prompt."""

    movable: bool = True
    """Whether it can go on at another replica with what it has; otherwise it is never migrated, and done again from its
    start when its replica is lost."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes now; the router answers the client."""

    request_id: str
    attempt: int
    replica: str
    server: Any
    """The actor of the replica."""

    engine_id: str
    """The engine's name for the attempt, by which it is aborted."""

    priority: int


@dataclass(frozen=True, slots=True)
class Answer:
    """How an attempt ended; the client tells the router."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    """Of the prompt, found in the cache; None where the engine does not say."""

    version: int | None
    """Of the weights, rises; None where the engine does not say."""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What a replica says about itself; the server answers the router."""

    limits: ReplicaLimits
    load: LoadReport
    """Since the last report."""

    progress: dict[str, int]
    """Output tokens of each request so far, by engine id."""

    active: bool
    """Whether the engine produced anything since the last report, or answers, or stands still on purpose."""

    version: int | None
    """Of the weights, rises."""
