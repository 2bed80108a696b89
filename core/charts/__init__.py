"""Charts as SVG, pages that need nothing else, and traces for Perfetto: shared by commands that show something."""

from slipstream.core.charts.heat import heat_map
from slipstream.core.charts.page import document, escaped, legend, table
from slipstream.core.charts.series import lines, stacked_bars
from slipstream.core.charts.spans import Span
from slipstream.core.charts.timeline import gantt
from slipstream.core.charts.trace import Counter, perfetto

__all__ = [
    "Counter",
    "Span",
    "document",
    "escaped",
    "gantt",
    "heat_map",
    "legend",
    "lines",
    "perfetto",
    "stacked_bars",
    "table",
]
