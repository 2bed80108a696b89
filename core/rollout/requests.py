"""What a routing policy is told and what it answers: plain records, shared by the simulator and live load balancers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

TrajectoryId: TypeAlias = Hashable
RequestId: TypeAlias = Hashable
GroupId: TypeAlias = Hashable
ReplicaId: TypeAlias = Hashable
"""A serving unit with one KV cache. With data parallelism inside an engine that is (worker, dp_rank), not the worker:
affinity to a worker drifts across its ranks (Dynamo #9920)."""


class Segment(NamedTuple):
    """A piece of a prompt that is shared as a whole: two prompts share tokens as far as their segments are equal."""

    key: Hashable
    tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: the next assistant turn of a trajectory."""

    request_id: RequestId
    trajectory: TrajectoryId
    group: GroupId
    """Samples of one prompt (GRPO siblings)."""

    prompt: tuple[Segment, ...]
    """The whole prompt, shared segments first; the last is the trajectory's own history (0 tokens when all is shared).
    `prefix.shared.SharedPrefixes` makes this from token ids."""

    first: bool
    """Whether the trajectory has no earlier turn."""

    movable: bool = True
    """Whether it can go on at another replica with what it has."""

    @property
    def own_tokens(self) -> int:
        """Tokens that no other trajectory has."""
        return self.prompt[-1].tokens

    @property
    def shared(self) -> tuple[Segment, ...]:
        """Segments that other trajectories may have as well."""
        return self.prompt[:-1]

    @property
    def tokens(self) -> int:
        """Length of the prompt."""
        return sum(segment.tokens for segment in self.prompt)


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What came back for a request."""

    output_tokens: int
    """Generated since the dispatch it answers; a partial count when `aborted`."""

    ended: bool = False
    """Whether the trajectory has no further turn."""

    aborted: bool = False
    """Whether the engine stopped because it was asked to."""

    cached_tokens: int | None = None
    """Prompt tokens found in the replica's cache, when the engine says so."""


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """What a replica can hold."""

    kv_tokens: int
    max_running: int

    def __post_init__(self) -> None:
        if self.kv_tokens <= 0 or self.max_running <= 0:
            raise ValueError(f"expected positive replica limits, got {self}; read them from the engine's own report")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What an engine says about itself since its last report; None where it does not say."""

    steps: int = 0
    """Engine iterations covered."""

    seconds: float = 0.0
    """Time they took."""

    decode_tokens: int = 0
    """Sum over those steps of requests that decoded."""

    context_tokens: int = 0
    """Sum over those steps of the context tokens of decoding requests."""

    prefill_tokens: int = 0
    prefill_quadratic: float = 0.0
    """Sum of (y^2 - x^2) over chunks that extended a context from x to y tokens."""

    kv_tokens: int | None = None
    """KV capacity as the engine counts it now."""

    max_running: int | None = None
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the request to the replica now."""

    request_id: RequestId
    replica: ReplicaId
    attempt: int
    """Rises from dispatch to dispatch, also when a request id is used again; an answer to an earlier one is refused."""

    priority: int
    """For engines with priorities, lower first: 0 for a returning turn, 1 for a first one."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop the request at the replica; report what it produced with `finished(..., aborted=True)`."""

    request_id: RequestId
    replica: ReplicaId
    attempt: int
    taken: bool = False
    """Whether the attempt no longer counts: the request is bound elsewhere or given up, so its answer need not come."""


Action: TypeAlias = Dispatch | Abort
