"""Bring the metrics of colocated syncs into verl's tracker; verl itself collects only those of checkpoint engines."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def collect_after_sync(update_weights: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `CheckpointEngineManager.update_weights`: after a colocated sync, fetch rank 0's metrics."""
    from verl.utils.ray_utils import auto_await

    # verl's decorator looks at its caller to decide between awaiting and running, so it must stay outermost.
    original = inspect.unwrap(update_weights)

    @functools.wraps(original)
    async def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = await original(self, *args, **kwargs)
        if self.backend == "naive":
            import ray

            size = self.actor_wg.world_size
            self.slipstream_metrics = ray.get(self.actor_wg.execute_checkpoint_engine(["sync_metrics"] * size))[0]
        return result

    decorated: Callable[..., Any] = auto_await(update)  # type: ignore[no-untyped-call]
    return decorated


def merge_into_step(consume_sync_metrics: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Wrap `PPOTrainer._consume_sync_metrics`: add what the colocated manager collected since the last step."""

    @functools.wraps(consume_sync_metrics)
    def consume(self: Any) -> dict[str, Any]:
        metrics = dict(consume_sync_metrics(self))
        manager = getattr(self, "checkpoint_manager", None)
        metrics.update(getattr(manager, "slipstream_metrics", None) or {})
        if manager is not None:
            manager.slipstream_metrics = {}
        return metrics

    return consume
