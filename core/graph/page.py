"""A schedule as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.charts import document, escaped, gantt, table
from slipstream.core.graph.gantt import Bar, spans


def page(title: str, head: Sequence[Sequence[str]], notes: Sequence[str], found: Sequence[Bar]) -> str:
    """Return the page: a table, notes, and a Gantt chart with a row a worker; decode is paler where its load is less.

    Args:
        head: rows of the table, the first one its headings.
    """
    told = "".join(f'<p class="faint">{escaped(note)}</p>' for note in notes)
    chart = gantt(spans(found), "what runs on each worker, over time") if found else ""
    caption = '<p class="faint">rollouts above, gang stages below; a colour a pipeline</p>' if found else ""
    return document(title, f"<h1>{escaped(title)}</h1>{table(head)}{told}{caption}{chart}")
