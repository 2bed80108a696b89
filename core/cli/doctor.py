"""``slipstream doctor``: prints the diagnosis in colour, as plain text or as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from slipstream.core import __version__
from slipstream.core.cli.diagnosis import AdapterDiagnosis, Diagnosis, diagnose
from slipstream.core.seams import SeamResult, SeamStatus

_HYDRA_FINE = "Hydra discovers slipstream's config groups"


def run(*, plain: bool, as_json: bool) -> int:
    """Print the diagnosis and return the exit status: 1 when something that is installed cannot be used."""
    diagnosis = diagnose()
    if as_json:
        print(json.dumps({"version": __version__, "healthy": diagnosis.healthy, **asdict(diagnosis)}, indent=2))
    elif plain:
        print(as_text(diagnosis))
    else:
        _print_in_colour(diagnosis)
    return 0 if diagnosis.healthy else 1


def as_text(diagnosis: Diagnosis) -> str:
    """Return the report as plain lines, two a seam."""
    lines = [f"slipstream {__version__}", diagnosis.hydra_problem or f"ok: {_HYDRA_FINE}"]
    for adapter in diagnosis.adapters:
        lines += ["", _title(adapter)]
        for result in adapter.results:
            lines.append(f"  {result.status.value}: {_what(result)}")
            lines.append(f"      expected {result.expected}; found {result.found}")
    return "\n".join([*lines, "", _verdict(diagnosis)])


def _print_in_colour(diagnosis: Diagnosis) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(f"[bold]slipstream {escape(__version__)}[/]")
    hydra = diagnosis.hydra_problem
    console.print(f"[red]{escape(hydra)}[/]" if hydra else f"[green]ok[/] {_HYDRA_FINE}")
    for adapter in diagnosis.adapters:
        if adapter.version is None:
            console.print(f"\n[dim]{escape(_title(adapter))}[/]")
            continue
        table = Table("seam", "feature", "expected", "found", "status", title=_title(adapter), title_justify="left")
        for result in adapter.results:
            status = f"[{_colour(result)}]{result.status.value}[/]"
            cells = (result.target, result.feature or result.note, result.expected, result.found)
            table.add_row(*map(escape, cells), status)
        console.print()
        console.print(table)
    console.print(f"\n[bold {'green' if diagnosis.healthy else 'red'}]{_verdict(diagnosis)}[/]")


def _colour(result: SeamResult) -> str:
    if result.broken:
        return "bold red"
    return "green" if result.status is SeamStatus.OK else "yellow"


def _title(adapter: AdapterDiagnosis) -> str:
    return f"{adapter.kind} {adapter.name}: {adapter.version or 'not installed'}"


def _what(result: SeamResult) -> str:
    return f"{result.target} [{result.feature or result.note}]"


def _verdict(diagnosis: Diagnosis) -> str:
    if not diagnosis.healthy:
        return "broken: see above"
    if not diagnosis.adapters:
        return "no framework or engine plugin is registered"
    return "everything that is installed fits"
