"""OpenRLHF's controllers with slipstream's metrics in what they log after each step."""

from __future__ import annotations

from typing import Any

import ray

from openrlhf.trainer import ppo_trainer, ppo_trainer_async
from slipstream.core.config import SlipstreamConfig, enabled_features, from_environment
from slipstream.core.telemetry import expose
from slipstream.plugins.openrlhf.actor_classes import by_reference, plain
from slipstream.plugins.openrlhf.router import RunRouter
from slipstream.plugins.openrlhf.telemetry import NotedSteps
from slipstream.plugins.vllm.drafting import ReplicaDrafters


class StepMetrics:
    """Mixin for `BasePPOTrainer`."""

    actor_model_group: Any
    vllm_engines: Any
    _slipstream_sync_metrics: dict[str, float] | None = None
    _slipstream_drafters: ReplicaDrafters | None = None
    _slipstream_router: RunRouter | None = None
    _slipstream_updates = 0
    """Of the engines' weights."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self._slipstream_config()
        if "router" in enabled_features(config):  # nothing is generated before this controller is there
            self._slipstream_router = RunRouter(self.vllm_engines, config)

    def broadcast_to_vllm(self) -> None:
        """See `BasePPOTrainer.broadcast_to_vllm`; a policy that is not ours has no such metrics, which is an error."""
        super().broadcast_to_vllm()  # type: ignore[misc]
        self._slipstream_updates += 1
        features = enabled_features(self._slipstream_config())
        if "weight_sync" in features:
            told = self.actor_model_group.async_run_method(method_name="slipstream_sync_metrics")
            self._slipstream_sync_metrics = ray.get(told)[0]
        elif features & {"drafter", "router"}:
            version = self._slipstream_updates
            ray.get([engine.slipstream_drafter_version.remote(version) for engine in self.vllm_engines])

    def train_step(self, rollout_samples: Any, global_step: int) -> tuple[dict[str, Any], int]:
        """See `BasePPOTrainer.train_step`."""
        status, step = super().train_step(rollout_samples, global_step)  # type: ignore[misc]
        config = self._slipstream_config()
        metrics = dict(self._slipstream_sync_metrics or {})
        if "drafter" in enabled_features(config):
            if self._slipstream_drafters is None:
                self._slipstream_drafters = ReplicaDrafters(config)
            metrics |= self._slipstream_drafters.after_step(self.vllm_engines, step)
        if self._slipstream_router is not None:
            metrics |= self._slipstream_router.after_step(step)
        expose(step, metrics)
        return {**status, **metrics}, step

    def _slipstream_config(self) -> SlipstreamConfig:
        return from_environment() or SlipstreamConfig()


_Trainer: Any = plain(ppo_trainer.PPOTrainer)
_AsyncTrainer: Any = plain(ppo_trainer_async.TrainingActor)


@by_reference
class SlipstreamTrainer(StepMetrics, NotedSteps, _Trainer):  # type: ignore[misc]
    """Takes the place of `PPOTrainer`."""


@by_reference
class SlipstreamAsyncTrainer(StepMetrics, NotedSteps, _AsyncTrainer):  # type: ignore[misc]
    """Takes the place of `TrainingActor`."""
