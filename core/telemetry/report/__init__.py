"""The report of runs: figures, advice, charts, one page."""

from slipstream.core.telemetry.report.advice import Advice, advice
from slipstream.core.telemetry.report.figures import Figure, comparison, figures
from slipstream.core.telemetry.report.page import page
from slipstream.core.telemetry.report.trace import trace

__all__ = ["Advice", "Figure", "advice", "comparison", "figures", "page", "trace"]
