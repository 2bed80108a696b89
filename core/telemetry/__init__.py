"""What a run writes down about itself, and how it is read and shown."""

from slipstream.core.telemetry.events import EventLog, check_path, event_log
from slipstream.core.telemetry.exposition import check_prometheus, expose
from slipstream.core.telemetry.reader import read_events
from slipstream.core.telemetry.records import (
    ChainWritten,
    Drafting,
    LeasedStage,
    Routing,
    RunStarted,
    StageFinished,
    StageStarted,
    StepFinished,
    WeightSync,
    finite,
)

__all__ = [
    "ChainWritten",
    "Drafting",
    "EventLog",
    "LeasedStage",
    "Routing",
    "RunStarted",
    "StageFinished",
    "StageStarted",
    "StepFinished",
    "WeightSync",
    "check_path",
    "check_prometheus",
    "event_log",
    "expose",
    "finite",
    "read_events",
]
