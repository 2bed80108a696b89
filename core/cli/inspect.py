"""``slipstream inspect``: what captured weight-sync frames, or those of a chain, carry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from slipstream.core.weights.chain import ChainError
from slipstream.core.weights.chain.store import HEAD, ChainStore
from slipstream.core.weights.wire.capture import CapturedUnit, read_capture
from slipstream.core.weights.wire.inspection import FrameInfo, SectionInfo, inspect_frame


def run(target: str, *, as_json: bool) -> int:
    """Print the frames of a file, of a chain (its folder or URL) or of one step of it; 1 when one is damaged, else 0.

    :raises CorruptFrameError: when it is no file of frames.
    :raises ChainError: when there is no chain, or a file of it is missing or damaged.
    """
    frames = list(_frames(target))
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(frames)).decode())
    else:
        _print(frames)
    return 0 if all(frame.checksum_ok for frame in frames) else 1


def _frames(target: str) -> Iterator[FrameInfo]:
    path = Path(target)
    if "://" in target or path.is_dir():
        yield from _of_chain(target)
    elif (path.parent / HEAD).is_file():
        yield from _of_chain(str(path.parent), None if path.name == HEAD else path.name)
    else:
        capture = read_capture(path.read_bytes())
        for frame in capture.frames:
            yield inspect_frame(frame, capture.units)


def _of_chain(url: str, file: str | None = None) -> Iterator[FrameInfo]:
    store = ChainStore(url)
    head = store.head()
    if head is None:
        raise ChainError(f"{url} has no {HEAD}: expected the folder of a chain")
    steps = [step for step in head.steps if file in (None, step.file)]
    if not steps:
        raise ChainError(f"the chain in {url} has no step {file}; it has {', '.join(step.file for step in head.steps)}")
    table = store.table(head.table)
    names = [spec.name for spec in table.specs]
    units = [CapturedUnit(unit.dtype, unit.numel, tuple(names[i] for i in unit.tensors)) for unit in table.units]
    for step in steps:
        with store.step(step.file) as (_, frames):
            for frame in frames:
                yield inspect_frame(frame, units)


def _print(frames: list[FrameInfo]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    columns = ("unit", "tensors", "mode", "level", "elements", "changes", "%", "bytes", "bits/change", "class map")
    for frame in frames:
        base = "nothing (a seed)" if frame.base is None else f"version {frame.base}"
        verdict = "[green]checksum ok[/]" if frame.checksum_ok else "[bold red]CHECKSUM WRONG[/]"
        title = f"frame {frame.index}: {base} to version {frame.target}, run {frame.run:x}, {frame.bytes:,} bytes"
        table = Table(*columns)
        for section in frame.sections:
            table.add_row(*map(escape, _cells(section)))
        console.print(f"[bold]{escape(title)}[/], {verdict}")
        console.print(table)
    sections = [section for frame in frames for section in frame.sections]
    changes = sum(section.changes for section in sections)
    size = sum(frame.bytes for frame in frames)
    bits = f", {8 * size / changes:.2f} bits a change" if changes else ""
    console.print(f"{len(frames)} frames, {len(sections)} sections, {changes:,} changes, {size:,} bytes{bits}")


def _cells(section: SectionInfo) -> tuple[str, ...]:
    names = section.tensors
    tensors = names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]} ({len(names)})" if names else ""
    share = f"{100 * section.changes / section.elements:.3g}" if section.elements else ""
    found = section.class_map
    class_map = "" if found is None else f"edges {found.edges} orders {found.orders}"
    return (
        str(section.unit),
        tensors,
        f"range from {section.first}" if section.mode == "range" else section.mode,
        str(section.level),
        "" if section.elements is None else f"{section.elements:,}",
        f"{section.changes:,}",
        share,
        f"{section.bytes:,}",
        f"{section.bits_per_change:.2f}",
        class_map,
    )
