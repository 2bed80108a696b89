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
    fewest = float("inf")
    near: list[tuple[float, ReplicaState]] = []
    group, shared, penalty, share = turn.group, turn.shared, settings.sibling_penalty, settings.kv_share
    for state in replicas:
        live = len(state.live)
        if live and (
            live >= live_cap * state.max_running
            or state.footprints + state.shared + footprint > share * state.kv.effective
        ):
            continue  # most replicas are full when this is called: has_room, less its call
        score = live + penalty * state.groups.get(group, 0)
        if score <= fewest + NEAR_TIE and state.has_room(footprint, shared, share, live_cap):
            fewest = min(fewest, score)
            near.append((score, state))
    tied = [state for score, state in near if score <= fewest + NEAR_TIE]
    return min(tied, key=lambda state: (state.remaining, chance.random())) if tied else None
