"""What a live router knows about trajectories: what of a prompt others share, and how much has been computed."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.core.rollout.messages import BLOCK_TOKENS, Request
from slipstream.core.rollout.prefix import SharedPrefixes
from slipstream.core.rollout.requests import Segment, Turn


@dataclass(slots=True)
class _Trajectory:
    blocks: tuple[int, ...]
    """Keys of its first prompt."""

    group: str
    shared: tuple[Segment, ...] = ()
    turns: int = 0
    known: int = 0
    """Tokens of its context that some replica has computed under the present weights."""


class Trajectories:
    """Those that have not ended."""

    def __init__(self) -> None:
        self._shared = SharedPrefixes(BLOCK_TOKENS)
        self._known: dict[str, _Trajectory] = {}

    def __len__(self) -> int:
        return len(self._known)

    def turn(self, request: Request) -> Turn:
        """Return a request as the turn of its trajectory."""
        trajectory = self._known.get(request.trajectory)
        first = trajectory is None
        if trajectory is None:
            blocks = () if request.blocks is None else tuple(map(int, request.blocks))
            group = request.group or f"prompt {blocks[-1] if blocks else request.trajectory}"
            trajectory = self._known[request.trajectory] = _Trajectory(blocks, group)
        if trajectory.turns < 2:  # on its return, siblings that share its prompt have come
            whole = self._shared.split_keys(
                request.trajectory, trajectory.group, trajectory.blocks, len(trajectory.blocks) * BLOCK_TOKENS
            )
            trajectory.shared = whole[:-1]
        trajectory.turns += 1
        own = request.tokens - sum(segment.tokens for segment in trajectory.shared)
        prompt = (*trajectory.shared, Segment(("own", request.trajectory), own))
        return Turn(request.request_id, request.trajectory, trajectory.group, prompt, first, request.movable)

    def computed(self, name: str, prompt_tokens: int, output_tokens: int) -> int:
        """Take the lengths of an answer; return how much of the prompt had been computed before."""
        trajectory = self._known.get(name)
        if trajectory is None:
            return 0
        known, trajectory.known = min(trajectory.known, prompt_tokens), prompt_tokens + output_tokens
        return known

    def weights_changed(self) -> None:
        """Forget what has been computed."""
        for trajectory in self._known.values():
            trajectory.known = 0

    def end(self, name: str) -> None:
        """Forget a trajectory."""
        self._known.pop(name, None)
