"""Rows, bars and the result file of a benchmark, in the convention that all areas share."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Bar:
    """One promise, and what was measured."""

    name: str
    value: float
    unit: str
    bar: float
    peer: str
    """What the best peer reaches in the same run, or the limit it is measured against; "" where there is none."""
    ok: bool

    @classmethod
    def at_most(cls, name: str, value: float, unit: str, bar: float, peer: str = "") -> Bar:
        """Smaller is better."""
        return cls(name, round(value, 5), unit, bar, peer, bool(value <= bar))

    @classmethod
    def at_least(cls, name: str, value: float, unit: str, bar: float, peer: str = "") -> Bar:
        """Larger is better."""
        return cls(name, round(value, 5), unit, bar, peer, bool(value >= bar))


@dataclass
class Report:
    """Everything one run found."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """What was left out, and why."""

    def write(self, path: Path, distributions: Sequence[str]) -> None:
        """Write the result file."""
        machine = {"cpu": _cpu(), "cores": os.cpu_count(), "system": platform.platform()}
        content = {
            "arguments": sys.argv[1:],
            "date": datetime.date.today().isoformat(),
            "machine": machine,
            "versions": {"python": platform.python_version(), **_versions(distributions)},
            "remarks": self.remarks,
            "rows": self.rows,
            "bars": [asdict(bar) for bar in self.bars],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")

    def print_bars(self, console: Console) -> None:
        """Print the bars, missed ones last and in red."""
        table = Table(title="bars", title_justify="left")
        for heading, ratio in (("bar", 4), ("value", 1), ("unit", 2), ("must be", 1), ("beside it", 5), ("", 1)):
            table.add_column(heading, ratio=ratio)
        for bar in sorted(self.bars, key=lambda bar: not bar.ok):
            verdict = "[green]met[/]" if bar.ok else "[bold red]MISSED[/]"
            table.add_row(bar.name, f"{bar.value:.4g}", bar.unit, f"{bar.bar:g}", bar.peer, verdict)
        console.print(table)
        for remark in self.remarks:
            console.print(f"note: {remark}", markup=False)

    @property
    def missed(self) -> int:
        """How many bars were missed."""
        return sum(not bar.ok for bar in self.bars)


def print_rows(console: Console, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of one kind as a table; the columns are the keys of the first."""
    if not rows:
        return
    columns = [key for key in rows[0] if key != "kind"]
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        cells = (row.get(key, "") for key in columns)
        table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells))
    console.print(table)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _versions(distributions: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
