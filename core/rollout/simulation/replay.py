"""Plays a workload under one policy after another and checks that all did the same work."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.rollout.router import CacheAwareRouter
from slipstream.core.rollout.settings import RouterSettings
from slipstream.core.rollout.simulation.cluster import Cluster, Outcome, PolicyFactory
from slipstream.core.rollout.simulation.engine import EngineModel
from slipstream.core.rollout.simulation.peers import PEERS
from slipstream.core.rollout.simulation.workload import Workload

OURS = "cache_aware"
PRIORITY_SUFFIX = "+priority"
"""A peer with returning turns first in the engine's queue; nobody ships that."""

POLICIES = (OURS, *PEERS)


def factory(name: str, workload: Workload, seed: int = 0, settings: RouterSettings | None = None) -> PolicyFactory:
    """Return what builds a policy by its name.

    :raises ValueError: for an unknown name.
    """
    if name == OURS:
        return lambda probe: CacheAwareRouter(settings or RouterSettings(seed=seed), history=workload.history)
    peer = PEERS.get(name.removesuffix(PRIORITY_SUFFIX))
    if peer is None:
        raise ValueError(f"unknown policy {name!r}; known: {', '.join(POLICIES)}, peers also with {PRIORITY_SUFFIX}")
    return lambda probe: peer(probe, seed, priority=name.endswith(PRIORITY_SUFFIX))


def replay(
    workload: Workload,
    policies: Sequence[str],
    models: Sequence[EngineModel],
    *,
    seed: int = 0,
    settings: RouterSettings | None = None,
) -> dict[str, Outcome]:
    """Play a workload under each policy.

    :raises RuntimeError: when a policy did other work than the workload holds.
    """
    factories = {name: factory(name, workload, seed, settings) for name in policies}
    outcomes = {}
    for name, make in factories.items():
        outcome = Cluster(workload, make, models).run()
        work = (outcome.trajectories, outcome.turns, outcome.output_tokens)
        expected = (len(workload.trajectories), workload.turns, workload.output_tokens)
        if work != expected:
            raise RuntimeError(
                f"{name}: expected {expected} trajectories, turns and tokens, got {work}; times are void"
            )
        outcomes[name] = outcome
    return outcomes


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of them do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, round(share * len(ordered)) - 1))] if ordered else 0.0
