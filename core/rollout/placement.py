"""Where a new trajectory goes: spread groups, even out counts, then predicted work."""

from __future__ import annotations

import random
from collections.abc import Iterable

from slipstream.core.rollout.replica import ReplicaState
from slipstream.core.rollout.requests import Turn
from slipstream.core.rollout.settings import RouterSettings

NEAR_TIE = 0.5


def place(
    replicas: Iterable[ReplicaState],
    turn: Turn,
    footprint: float,
    settings: RouterSettings,
    live_cap: float,
    chance: random.Random,
) -> ReplicaState | None:
    """Return the replica with room that has the fewest live trajectories, siblings counted more; None without room.

    Near ties go to the smallest predicted work, and ties of that to chance, so that idle replicas fan out (verl #7613).
    """
    roomy: list[ReplicaState] = []
    scores: list[float] = []
    for state in replicas:
        if state.has_room(footprint, turn.shared, settings.kv_share, live_cap):
            roomy.append(state)
            scores.append(len(state.live) + settings.sibling_penalty * state.groups.get(turn.group, 0))
    if not roomy:
        return None
    limit = min(scores) + NEAR_TIE
    near = [state for state, score in zip(roomy, scores, strict=True) if score <= limit]
    return min(near, key=lambda state: (state.remaining, chance.random()))
