"""``slipstream doctor``: prints the diagnosis in colour, as plain text or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, TypeAlias

from slipstream.core import __version__
from slipstream.core.cli.capture import captured
from slipstream.core.cli.diagnosis import AdapterDiagnosis, Diagnosis, diagnose
from slipstream.core.seams import SeamResult, SeamStatus

_HYDRA_FINE = "Hydra discovers slipstream's config groups"
_NOTHING_REGISTERED = "no framework or engine plugin is registered"

Line: TypeAlias = tuple[str, str]
"""A line of the report and its style."""


def run(*, plain: bool, as_json: bool) -> int:
    """Print the diagnosis and return the exit status: 1 when something that is installed cannot be used."""
    with captured() as said:
        diagnosis = diagnose()
        imports = said()
    if not diagnosis.healthy and imports:
        print("# printed by the packages while they were imported:", file=sys.stderr)
        print("".join(f"# | {line}\n" for line in imports.splitlines()), file=sys.stderr)
    if as_json:
        print(json.dumps({"version": __version__, "healthy": diagnosis.healthy, **asdict(diagnosis)}, indent=2))
    elif plain:
        print(as_text(diagnosis))
    else:
        _print_in_colour(diagnosis)
    return 0 if diagnosis.healthy else 1


def as_text(diagnosis: Diagnosis) -> str:
    """Return the report as plain lines, two a seam."""
    return "\n".join(text for text, _ in _lines(diagnosis))


def _lines(diagnosis: Diagnosis) -> Iterator[Line]:
    """Yield the report without a table; a name is never cut, however narrow the window is."""
    yield from _head(diagnosis)
    for adapter in diagnosis.adapters:
        yield from (("", ""), _title(adapter))
        for result in adapter.results:
            yield f"  {result.status.value}: {result.target} [{result.feature or result.note}]", _colour(result)
            yield f"      expected {result.expected}; found {result.found}", ""
    yield from _foot(diagnosis)


def _print_in_colour(diagnosis: Diagnosis) -> None:
    """Print tables, or plain lines where a table does not fit or nobody looks at it."""
    from rich.console import Console
    from rich.text import Text

    console = Console()

    def show(lines: Iterable[Line]) -> None:
        for text, style in lines:
            console.print(Text(text, style), soft_wrap=True)

    tables = {adapter: _table(adapter) for adapter in diagnosis.adapters if adapter.results}
    unbounded = console.options.update_width(1000)  # a measure in the console's own options never exceeds its width
    needed = max((console.measure(table, options=unbounded).minimum for table in tables.values()), default=0)
    if not console.is_terminal or needed > console.width:
        show(_lines(diagnosis))
        return
    show(_head(diagnosis))
    for adapter in diagnosis.adapters:
        show([("", ""), _title(adapter)])
        if adapter in tables:
            console.print(tables[adapter])
    show(_foot(diagnosis))


def _table(adapter: AdapterDiagnosis) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("seam", no_wrap=True)
    for name in ("feature", "expected", "found", "status"):
        table.add_column(name, overflow="fold")
    for result in adapter.results:
        cells = (result.target, result.feature or result.note, result.expected, result.found)
        table.add_row(*map(Text, cells), Text(result.status.value, _colour(result)))
    return table


def _colour(result: SeamResult) -> str:
    if result.broken:
        return "bold red"
    return "green" if result.status is SeamStatus.OK else "yellow"


def _head(diagnosis: Diagnosis) -> Iterator[Line]:
    yield f"slipstream {__version__}", "bold"
    hydra = diagnosis.hydra_problem
    yield (hydra, "red") if hydra else (f"ok: {_HYDRA_FINE}", "green")


def _title(adapter: AdapterDiagnosis) -> Line:
    return f"{adapter.kind} {adapter.name}: {adapter.version or 'not installed'}", "" if adapter.version else "dim"


def _foot(diagnosis: Diagnosis) -> Iterator[Line]:
    yield "", ""
    if diagnosis.healthy:
        known = "everything that is installed fits" if diagnosis.adapters else _NOTHING_REGISTERED
        yield known, "bold green"
        return
    yield "broken: see above", "bold red"
    for adapter in diagnosis.adapters:
        if adapter.remedy is not None:
            yield f"{adapter.name}: {adapter.remedy}", "bold red"
