"""Rollout scheduling: trajectories are admitted to replicas so that their contexts stay in the cache.

Where to look:

- the policy: `router` (events in, actions out), `groups` and `queue` (who enters next), `placement` (where), `replica`
  (what fits), `moves` and `finish` (when to leave home), `prediction`, `costs`, `head_start`, `settings`;
- around it: `policy` (the interface), `requests` (its records), `live` (asyncio), `partial` (stitching attempts),
  `prefix/` (which replica holds which prompt, KV events, shared prefixes);
- in a run: `service` (the router's actor), `client` (who has requests), `messages` (between them), `trajectories`,
  `measures`;
- `simulation/`: engine replicas, workloads and peers, for ``slipstream replay`` and the benchmark.
"""

from slipstream.core.rollout.costs import CostFit, StepCosts
from slipstream.core.rollout.head_start import DraftGain, HeadStart, StudiedGain
from slipstream.core.rollout.live import LiveRouter
from slipstream.core.rollout.partial import Part, Span, Stitched, continuation, stitch
from slipstream.core.rollout.policy import RoutingPolicyLike
from slipstream.core.rollout.prediction import FinishedLengths, LengthModel
from slipstream.core.rollout.prefix import PrefixIndex, SharedPrefixes, decode_batch
from slipstream.core.rollout.requests import (
    Abort,
    Action,
    Dispatch,
    LoadReport,
    ReplicaLimits,
    Segment,
    Turn,
    TurnResult,
)
from slipstream.core.rollout.router import CacheAwareRouter
from slipstream.core.rollout.settings import RouterSettings

__all__ = [
    "Abort",
    "Action",
    "CacheAwareRouter",
    "CostFit",
    "Dispatch",
    "DraftGain",
    "FinishedLengths",
    "HeadStart",
    "LengthModel",
    "LiveRouter",
    "LoadReport",
    "Part",
    "PrefixIndex",
    "ReplicaLimits",
    "RouterSettings",
    "RoutingPolicyLike",
    "Segment",
    "SharedPrefixes",
    "Span",
    "StepCosts",
    "Stitched",
    "StudiedGain",
    "Turn",
    "TurnResult",
    "continuation",
    "decode_batch",
    "stitch",
]
