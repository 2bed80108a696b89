"""Which physical devices the processes of a verl run are on."""

from __future__ import annotations

from collections import Counter
from typing import Any

from slipstream.core.graph import GraphError
from slipstream.core.graph.holder import worker_of


def _here(resource: str) -> tuple[str, str]:
    import ray

    context = ray.get_runtime_context()
    return context.get_node_id(), str(context.get_accelerator_ids()[resource][0])


def devices_of(pools: list[Any], device: str) -> list[tuple[str, str]]:
    """Return (node, device) of every bundle of verl's resource pools.

    Asks from inside each bundle, before verl starts its workers there; Ray fixes a bundle's devices when it makes it.

    Args:
        pools: `RayResourcePool`s; their placement groups are made now, as verl's workers would do next.
        device: verl's `trainer.device`.

    Raises:
        GraphError: two processes of the run would be on one device.
    """
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from verl.plugin.platform import get_platform

    platform = get_platform()
    resource = platform.ray_resource_name()
    probe = ray.remote(_here)
    asked = []
    for pool in pools:
        for group in pool.get_placement_groups(device_name=device):
            for index in range(group.bundle_count):
                strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
                options = {"num_cpus": 0, "scheduling_strategy": strategy, **platform.ray_resource_options(0.01)}
                asked.append(probe.options(**options).remote(resource))
    found: list[tuple[str, str]] = ray.get(asked)
    twice = [place for place, count in Counter(found).items() if count > 1]
    if twice:
        raise GraphError(
            f"slipstream.placement.mode=graph: expected every process of this run on a {resource} of its own, found "
            f"two on {', '.join(f'{resource} {index} of node {node[:8]}' for node, index in twice)}; end the runs "
            "that left gaps between the slots of this cluster, or start it with one slot fewer (docs/placement.md)"
        )
    return found


def workers_of(devices: list[tuple[str, str]]) -> frozenset[int]:
    """Return the numbers under which the arbiter knows the devices."""
    return frozenset(worker_of(node, index) for node, index in devices)
