"""OpenRLHF's controllers with slipstream's metrics in what they log after each step."""

from __future__ import annotations

from typing import Any

import ray

from openrlhf.trainer import ppo_trainer, ppo_trainer_async
from slipstream.core.config import SlipstreamConfig, enabled_features, from_environment
from slipstream.core.telemetry import expose
from slipstream.plugins.openrlhf.actor_classes import by_reference, plain
from slipstream.plugins.vllm.drafting import ReplicaDrafters


class StepMetrics:
    """Mixin for `BasePPOTrainer`."""

    actor_model_group: Any
    vllm_engines: Any
    _slipstream_sync_metrics: dict[str, float] | None = None
    _slipstream_drafters: ReplicaDrafters | None = None
    _slipstream_updates = 0
    """Of the engines' weights."""

    def broadcast_to_vllm(self) -> None:
        """See `BasePPOTrainer.broadcast_to_vllm`; a policy that is not ours has no such metrics, which is an error."""
        super().broadcast_to_vllm()  # type: ignore[misc]
        self._slipstream_updates += 1
        features = enabled_features(self._slipstream_config())
        if "weight_sync" in features:
            told = self.actor_model_group.async_run_method(method_name="slipstream_sync_metrics")
            self._slipstream_sync_metrics = ray.get(told)[0]
        elif "drafter" in features:
            version = self._slipstream_updates
            ray.get([engine.slipstream_drafter_version.remote(version) for engine in self.vllm_engines])

    def train_step(self, rollout_samples: Any, global_step: int) -> tuple[dict[str, Any], int]:
        """See `BasePPOTrainer.train_step`."""
        status, following = super().train_step(rollout_samples, global_step)  # type: ignore[misc]
        config = self._slipstream_config()
        drafting: dict[str, float] = {}
        if "drafter" in enabled_features(config):
            if self._slipstream_drafters is None:
                self._slipstream_drafters = ReplicaDrafters(config)
            drafting = self._slipstream_drafters.after_step(self.vllm_engines, global_step)
        metrics = {**(self._slipstream_sync_metrics or {}), **drafting}
        expose(following, metrics)
        return {**status, **metrics}, following

    def _slipstream_config(self) -> SlipstreamConfig:
        return from_environment() or SlipstreamConfig()


_Trainer: Any = plain(ppo_trainer.PPOTrainer)
_AsyncTrainer: Any = plain(ppo_trainer_async.TrainingActor)


@by_reference
class SlipstreamTrainer(StepMetrics, _Trainer):  # type: ignore[misc]
    """Takes the place of `PPOTrainer`."""


@by_reference
class SlipstreamAsyncTrainer(StepMetrics, _AsyncTrainer):  # type: ignore[misc]
    """Takes the place of `TrainingActor`."""
