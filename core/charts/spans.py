"""What ran where, from when to when."""

from __future__ import annotations

from typing import Any

import msgspec


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of work: a bar of a Gantt chart, a slice of a trace."""

    row: str
    """Where: a row of the chart, a process of the trace."""
    group: str
    """Whose: a colour of the chart, a thread of the trace."""
    name: str
    start: float
    """Seconds from the start of the chart."""
    end: float
    lane: int = 0
    """Which of the row's lanes it is drawn in, from the top."""
    strength: float = 1.0
    """0 to 1: how opaque its bar is."""
    details: dict[str, Any] = {}
    """Shown by the trace viewer."""
