"""``slipstream report``: runs as their event logs tell them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from slipstream.core.hooks import plugins
from slipstream.core.telemetry.history import RunFileError, RunHistory, read_run
from slipstream.core.telemetry.report import advice, comparison, figures, page, trace

DEFAULT = Path("slipstream-report.html")


def run(
    files: Sequence[Path], *, baseline: Path | None, output: Path | None, perfetto: Path | None, as_json: bool
) -> int:
    """Write the page, or print JSON; returns the exit status.

    :param output: where the page goes; None is `DEFAULT`, and no page with `as_json`.
    :raises RunFileError: a file is no log of a run.
    """
    if perfetto is not None and len(files) > 1:
        raise RunFileError(f"--perfetto: expected one run, got {len(files)}; make a trace of each")
    readers = [each.read_metrics for each in plugins().frameworks().values() if each.read_metrics is not None]
    runs = [read_run(file, readers) for file in files]
    other = None if baseline is None else read_run(baseline, readers)
    written = []
    if output is not None or not as_json:
        written.append(output or DEFAULT)
        written[-1].write_text(page(runs, other), encoding="utf-8")
    if perfetto is not None:
        written.append(perfetto)
        perfetto.write_bytes(trace(runs[0]))
    if as_json:
        content = {"runs": [_content(each) for each in runs], "baseline": None if other is None else _content(other)}
        print(msgspec.json.format(msgspec.json.encode(content)).decode())
        for path in written:
            print(f"written: {path}", file=sys.stderr)
        return 0
    _print(runs, other, written)
    return 0


def _content(history: RunHistory) -> dict[str, Any]:
    return {
        "name": history.name,
        "file": str(history.path),
        "figures": figures(history),
        "advice": advice(history),
        "steps": history.steps,
        "syncs": history.syncs,
        "drafting": history.drafting,
        "routing": history.routing,
    }


def _print(runs: Sequence[RunHistory], baseline: RunHistory | None, written: Sequence[Path]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    head, *rows = comparison(runs, baseline)
    table = Table()
    for name in head:
        table.add_column(Text(name))
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    for history in runs:
        for each in advice(history):
            console.print(Text(f"{history.name}: {each.found} {each.do}"), soft_wrap=True)
    for path in written:
        console.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)
