"""The numbers of the cache-aware router; the defaults are those of the routing study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Tuned in simulation on seeds that the benchmark does not use; docs/rollout.md says what each is worth."""

    kv_share: float = 0.9
    """Share of a replica's KV that footprints and shared prefixes may take (the KV window)."""

    park_share: float = 0.9
    """Share beyond which a returning turn whose elders fill the memory is parked."""

    reserve: float = 0.6
    """Share of a multi-turn trajectory's expected growth that admission reserves."""

    single_turn_reserve: float = 0.25

    live_cap: float = 2.0
    """Live trajectories per running slot; above 1 because some are in tools."""

    single_turn_live_cap: float = 1.25
    """The same for single turns: only enough to keep the engine's own queue from running dry."""

    spread_from: float = 1.0
    """Demand over capacity from which every group first gets one sibling started: what has started tells how long the
    rest of its group will be. Nobody is held."""

    overload: float = 3.0
    """Demand over capacity from which returning turns go first in the engine's own queue."""

    sibling_penalty: float = 2.0
    """How many live trajectories a live sibling on a replica counts for, so that groups spread."""

    move_seconds: float = 2.0
    """Time between looks for a migration; 0 switches migrations and moves of returning turns off."""

    move_margin: float = 1.3
    """A move must gain this many times the prefill it costs ..."""

    move_gain_seconds: float = 0.5
    """... and this much on top, or ..."""

    move_gain_share: float = 0.05
    """... this share of the home's finish estimate, whichever is more. For single turns."""

    multi_turn_gain_share: float = 0.25
    """The same for trajectories of several turns, whose remaining work is harder to tell."""

    imbalance: float = 0.02
    """Finish estimates must differ by this share for a migration."""

    moves: int = 3
    """Migrations of a trajectory in a step at most."""

    moves_per_turn: int = 1
    """Migrations of a request at most."""

    rest_seconds: float = 10.0
    """Time between two migrations of a trajectory."""

    stall_seconds: float = 600.0
    """A replica with requests that was not heard of for so long is treated as lost until it is heard again."""

    weights: Literal["reset", "keep"] = "reset"
    """What a weight update does to cached prefixes: ``reset`` when engines drop them (the default of verl and vLLM),
    ``keep`` when they serve on from old KV."""

    seed: int = 0
    """Of the tie breaks."""

    def reserve_share(self, single_turn: bool) -> float:
        """Return the share of expected growth to reserve."""
        return self.single_turn_reserve if single_turn else self.reserve

    def live_share(self, single_turn: bool) -> float:
        """Return how many live trajectories a running slot may have."""
        return self.single_turn_live_cap if single_turn else self.live_cap
