"""The interface of a routing policy: a state machine without clock, sockets or threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.core.rollout.requests import (
    Action,
    LoadReport,
    ReplicaId,
    ReplicaLimits,
    RequestId,
    TrajectoryId,
    Turn,
    TurnResult,
)


class RoutingPolicyLike(Protocol):
    """Decides which replica serves a request, and when.

    The caller tells what happened, in any order, and then calls `poll`, which answers with what to do. The same object
    runs in the simulator (`simulation.cluster`), in asyncio (`live.LiveRouter`) and in a Ray actor around that. Times
    are seconds on one monotonic clock. Not thread-safe.
    """

    poll_seconds: float | None
    """`poll` wants to be called at least this often; None when only events matter."""

    def add_replica(self, replica: ReplicaId, limits: ReplicaLimits, now: float) -> None:
        """Use a replica from now on."""

    def remove_replica(self, replica: ReplicaId, now: float) -> None:
        """Stop using a replica; what it had in flight is dispatched again elsewhere."""

    def submit(self, turn: Turn, now: float) -> None:
        """Take a request; its dispatch comes out of this or a later `poll`."""

    def progress(self, request_id: RequestId, output_tokens: int, now: float) -> None:
        """Say how many tokens the current attempt of a request has produced; 1 means its prefill is over."""

    def finished(self, request_id: RequestId, attempt: int, result: TurnResult, now: float) -> bool:
        """Take an answer; False when it belongs to an earlier attempt and must be dropped."""

    def cancel(self, request_id: RequestId, now: float) -> None:
        """Forget a request that its client gave up."""

    def end_trajectory(self, trajectory: TrajectoryId, now: float) -> None:
        """Forget a trajectory that has no further turn and whose last result did not say so."""

    def report(self, replica: ReplicaId, load: LoadReport, now: float) -> None:
        """Take what an engine says about its steps and capacity."""

    def weights_changed(self, version: int, now: float) -> None:
        """New weights are in place: what is cached from before is worth nothing, or less."""

    def poll(self, now: float) -> Sequence[Action]:
        """Answer with what to do now."""
