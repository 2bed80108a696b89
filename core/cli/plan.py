"""``slipstream plan``: simulates every way to run a workload on one cluster, and says which is best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from slipstream.core.charts import perfetto
from slipstream.core.graph.comparison import Comparison, compare
from slipstream.core.graph.gantt import bars, spans
from slipstream.core.graph.page import page
from slipstream.core.graph.profile import read_profile
from slipstream.core.graph.workload import read_workload


def run(workload_file: Path, *, as_json: bool, html: Path | None, trace: Path | None, profile: Path | None) -> int:
    """Print the comparison and write what was asked for; returns the exit status.

    Raises:
        WorkloadError: the file is not a workload.
        GraphError: the profile is not one.
    """
    from rich.console import Console

    workload = read_workload(workload_file)
    if profile is not None:
        workload = read_profile(profile).applied(workload)
    with Console(stderr=True).status("simulating (compiles for a minute or two the first time)"):
        compared = compare(workload)
    chart = bars(workload, compared.best_run.log) if compared.best_run is not None else []
    if html is not None:
        html.write_text(page(f"slipstream plan: {workload.name}", _rows(compared), compared.notes, chart))
    if trace is not None:
        trace.write_bytes(perfetto(spans(chart)))
    if as_json:
        content: dict[str, Any] = {
            "workload": workload.name,
            "workers": workload.workers,
            "best": compared.best,
            "options": compared.options,
            "notes": compared.notes,
        }
        print(msgspec.json.format(msgspec.json.encode(content)).decode())
        return 0
    _print(compared, [path for path in (html, trace) if path is not None])
    return 0


def _rows(compared: Comparison) -> list[tuple[str, ...]]:
    head = ("option", "seconds", "over serial", "latency, mean", "latency, worst", "planning ms, median")
    return [
        head,
        *(
            (
                ("* " if each.name == compared.best else "") + each.name,
                f"{each.seconds:.1f}",
                f"{each.over_serial:.2f}x",
                f"{each.mean_latency:.2f}x",
                f"{each.worst_latency:.2f}x",
                "" if each.planning_ms is None else f"{each.planning_ms:.1f}",
            )
            for each in compared.options
        ),
    ]


def _print(compared: Comparison, written: list[Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    head, *rows = _rows(compared)
    table = Table(*head, title=f"{compared.workload}: simulated, * is what slipstream runs", title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for note in compared.notes:
        console.print(f"note: {note}", markup=False)
    for path in written:
        console.print(f"written: {path}", markup=False)
