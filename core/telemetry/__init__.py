"""What a run writes down about itself, and how it is read and shown."""

from slipstream.core.telemetry.events import AUTO, FILE_NAME, EventLog, check_path, event_log, placed
from slipstream.core.telemetry.reader import read_events
from slipstream.core.telemetry.records import (
    ChainWritten,
    Drafting,
    Routing,
    RunStarted,
    StageFinished,
    StageStarted,
    StepFinished,
    WeightSync,
)

__all__ = [
    "AUTO",
    "FILE_NAME",
    "ChainWritten",
    "Drafting",
    "EventLog",
    "Routing",
    "RunStarted",
    "StageFinished",
    "StageStarted",
    "StepFinished",
    "WeightSync",
    "check_path",
    "event_log",
    "placed",
    "read_events",
]
