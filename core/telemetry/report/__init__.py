"""The report of runs: figures, advice, charts, one page."""

from slipstream.core.telemetry.report.headline import Figure, comparison, figures
from slipstream.core.telemetry.report.html import page
from slipstream.core.telemetry.report.remarks import Advice, advice
from slipstream.core.telemetry.report.spans import trace

__all__ = ["Advice", "Figure", "advice", "comparison", "figures", "page", "trace"]
