"""What a run writes down about itself."""

from slipstream.core.telemetry.events import EventLog, event_log
from slipstream.core.telemetry.reader import read_events

__all__ = ["EventLog", "event_log", "read_events"]
