"""OpenRLHF's controllers with the metrics of each sync in what they log."""

from __future__ import annotations

from typing import Any

import ray

from openrlhf.trainer import ppo_trainer, ppo_trainer_async
from slipstream.core.telemetry import expose
from slipstream.plugins.openrlhf.actor_classes import by_reference, plain


class SyncMetrics:
    """Mixin for `BasePPOTrainer`."""

    actor_model_group: Any
    _slipstream_metrics: dict[str, float]

    def broadcast_to_vllm(self) -> None:
        """See `BasePPOTrainer.broadcast_to_vllm`; a policy that is not ours has no such metrics, which is an error."""
        super().broadcast_to_vllm()  # type: ignore[misc]
        told = self.actor_model_group.async_run_method(method_name="slipstream_sync_metrics")
        self._slipstream_metrics = ray.get(told)[0]

    def train_step(self, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], int]:
        """See `BasePPOTrainer.train_step`."""
        status, following = super().train_step(*args, **kwargs)  # type: ignore[misc]
        expose(following, self._slipstream_metrics)
        return {**status, **self._slipstream_metrics}, following


_Trainer: Any = plain(ppo_trainer.PPOTrainer)
_AsyncTrainer: Any = plain(ppo_trainer_async.TrainingActor)


@by_reference
class SlipstreamTrainer(SyncMetrics, _Trainer):  # type: ignore[misc]
    """Takes the place of `PPOTrainer`."""


@by_reference
class SlipstreamAsyncTrainer(SyncMetrics, _AsyncTrainer):  # type: ignore[misc]
    """Takes the place of `TrainingActor`."""
