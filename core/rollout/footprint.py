"""What a trajectory takes of a replica's KV memory: what it has, and a share of what is expected to come."""

from __future__ import annotations

from slipstream.core.rollout.prediction import LengthModel
from slipstream.core.rollout.replica import Live, ReplicaState
from slipstream.core.rollout.requests import GroupId, Turn
from slipstream.core.rollout.settings import RouterSettings


class Footprints:
    """Own tokens plus the reserved share of the predicted growth; refreshed at every answer and return."""

    def __init__(self, settings: RouterSettings, lengths: LengthModel) -> None:
        self._settings, self._lengths = settings, lengths

    def reserved(self, own: int, produced: int, group: GroupId) -> float:
        """Return the tokens to reserve for a trajectory with `own` tokens, `produced` of them generated."""
        share = self._settings.reserve_share(self._lengths.single_turn)
        return own + share * self._lengths.growth(produced, group)

    def admitted(self, turn: Turn, number: int) -> Live:
        """Return the record of a trajectory that is being bound for the first time."""
        live = Live(turn.trajectory, turn.group, turn.shared, number, turn.own_tokens, turn=turn)
        live.footprint = self.reserved(turn.own_tokens, 0, turn.group)
        live.remaining = self._lengths.remaining(0, turn.group)
        self._lengths.guess(turn.trajectory, turn.group)
        return live

    def refresh(self, live: Live, home: ReplicaState | None, own: int) -> None:
        """Take a trajectory's new size and prediction into account, where it is bound."""
        produced = live.produced + live.stitched
        footprint = self.reserved(own, produced, live.group)
        remaining = self._lengths.remaining(produced, live.group)
        if home is not None:
            home.update(live, own, footprint, remaining)
        else:
            live.own, live.footprint, live.remaining = own, footprint, remaining
