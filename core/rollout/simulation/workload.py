"""What a simulated step has to do: trajectories of turns, known to the cluster and not to the policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from slipstream.core.rollout.prediction import FinishedLengths
from slipstream.core.rollout.requests import GroupId, Segment


@dataclass(frozen=True, slots=True)
class TurnWork:
    """One turn: what enters the prompt before it, and what is generated."""

    input_tokens: int
    output_tokens: int
    wait_seconds: float = 0.0
    """Tool time after it, before the next turn is submitted."""


@dataclass(frozen=True)
class Trajectory:
    """One sample of a prompt."""

    name: int
    group: GroupId
    shared: tuple[Segment, ...]
    turns: tuple[TurnWork, ...]
    arrival: float = 0.0

    @cached_property
    def output_tokens(self) -> int:
        """Tokens it generates in all."""
        return sum(turn.output_tokens for turn in self.turns)

    @cached_property
    def own_tokens(self) -> int:
        """Tokens of its own when it has ended."""
        return sum(turn.input_tokens + turn.output_tokens for turn in self.turns)

    @cached_property
    def shared_tokens(self) -> int:
        """Tokens in front of its own."""
        return sum(segment.tokens for segment in self.shared)


@dataclass(frozen=True)
class Workload:
    """One rollout step."""

    name: str
    trajectories: Sequence[Trajectory]
    history: Sequence[FinishedLengths] = ()
    """Lengths of the step before, for policies that predict."""

    @cached_property
    def turns(self) -> int:
        """Requests in all."""
        return sum(len(each.turns) for each in self.trajectories)

    @cached_property
    def output_tokens(self) -> int:
        """Tokens to generate in all."""
        return sum(each.output_tokens for each in self.trajectories)

    @cached_property
    def mean_context(self) -> float:
        """Mean final context length."""
        return sum(each.shared_tokens + each.own_tokens for each in self.trajectories) / len(self.trajectories)


def lengths(trajectories: Iterable[Trajectory]) -> list[FinishedLengths]:
    """Return what a policy would remember of a finished step."""
    return [
        FinishedLengths(each.output_tokens, sum(turn.input_tokens for turn in each.turns[1:]), len(each.turns))
        for each in trajectories
    ]
