"""Events of the plugin interface go to the run's event log, whichever framework fires them."""

from __future__ import annotations

import functools

from slipstream.core.config import from_environment
from slipstream.core.hooks.events import Stage
from slipstream.core.hooks.markers import hookimpl
from slipstream.core.telemetry.events import EventLog, event_log
from slipstream.core.telemetry.records import StageFinished, StageStarted


@functools.cache
def _log() -> EventLog:
    """The log of this process."""
    config = from_environment()
    return EventLog(None) if config is None else event_log(config)


@hookimpl
def slipstream_stage_started(stage: Stage) -> None:
    """Note when the stage began."""
    _log().write(StageStarted(name=stage.name, step=stage.step, pipeline=stage.pipeline, workers=stage.workers))


@hookimpl
def slipstream_stage_finished(stage: Stage) -> None:
    """Note when the stage ended."""
    _log().write(StageFinished(name=stage.name, step=stage.step, pipeline=stage.pipeline))
