"""What a run writes down about itself."""

from slipstream.core.telemetry.events import EventLog, check_path, event_log
from slipstream.core.telemetry.reader import read_events

__all__ = ["EventLog", "check_path", "event_log", "read_events"]
