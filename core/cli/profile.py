"""``slipstream profile``: measures on this machine what the schedulers otherwise assume."""

from __future__ import annotations

from pathlib import Path

import msgspec

from slipstream.core.graph.profile import Profile, measure


def run(*, seconds: float, width: int | None, out: Path | None, as_json: bool) -> None:
    """Measure, print, and write what was asked for."""
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        found = measure(seconds, width, status.update)
    written = msgspec.json.format(msgspec.json.encode(found))
    if out is not None:
        out.write_bytes(written)
    if as_json:
        print(written.decode())
    else:
        _print(found, out)


def _print(found: Profile, out: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    title = f"{found.device}, {found.machine}: milliseconds of an iteration of a stand-in model, alone"
    table = Table("work", "rows", "share", "ms", "ms a row", title=title, title_justify="left")
    for each in found.alone:
        per_row = f"{1e3 * each.seconds / each.rows:.3f}" if each.rows else ""
        table.add_row(each.work, str(each.rows), f"{each.share:g}", f"{1e3 * each.seconds:.2f}", per_row)
    console.print(table)
    pairs = Table("work", "beside", "takes", title="two at once, on the whole machine each", title_justify="left")
    for pair in found.pairs:
        first, second = (
            f"{name} ({rows} rows, u {found.load(rows):.2f})" if name == "decode" else name
            for name, rows in ((pair.work, pair.rows), (pair.beside, pair.beside_rows))
        )
        pairs.add_row(first, second, f"{1 + pair.extra:.2f}x")
    console.print(pairs)
    cost = found.decode
    console.print(
        f"decode: {1e3 * cost.iteration:.2f} ms + {1e3 * cost.per_request:.3f} ms a request; "
        f"prefill {1e3 * cost.prefill:.3f} ms a token",
        markup=False,
    )
    if out is not None:
        console.print(f"written: {out}; slipstream plan WORKLOAD --profile {out}", markup=False)
