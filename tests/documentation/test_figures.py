"""Every figure in the README and docs/ names its source, and those with a result file agree with it.

The sources are the table at the end of docs/decisions.md. A marker, `<!-- figures: name -->` on a line of its own,
counts for what follows up to the next heading or marker; several in a row count together. After the name it may say
which rows of the result file are meant and which of their fields, and what in the block is no result:

    <!-- figures: sync-sizes | data: synthetic 0.67 % | only: bits/change, bound | not: 0.7 % -->
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOG = ROOT / "docs" / "decisions.md"
EXEMPT = {
    "decisions.md": "a log",
    "known-complaints.md": "numbers of issues",
    "settings.md": "checked by tests/core/config/test_settings_page.py",
    "compatibility.md": "checked by test_compatibility.py",
}
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in EXEMPT)]
NUMBER = r"\d[\d,]*(?:\.\d+)?"
UNIT = r"(?:x\b|%|times\b|m?s\b|[unµ]s\b|min\b|minutes?\b|seconds?\b|bits?\b|[kMGT]i?B\b|bytes a\b|of the time)"
WITH_UNIT = re.compile(rf"(?<![\w.\[^-])({NUMBER})(?:\*\*)?[ ]?({UNIT})")
PARTS = re.compile(rf"(?<![\w.])({NUMBER}) of ({NUMBER})\b")
IN_CELL = re.compile(r"(?<![\w.])(\d[\d,]*\.\d+)(?![\w.])|(?<![\w.])(\d{1,3}(?:,\d{3})+)(?![\w.])")
MARKER = re.compile(r"<!-- figures: (.+?) -->")
SCALES = (1.0, 100.0, 1e-3, 1e3, 1e-6, 1e-9)
"""Of a stored value to what pages show: per cent, ms, MB, GB."""


@dataclass(frozen=True)
class Source:
    """A row of the table in docs/decisions.md."""

    command: str
    measured: str
    result: str
    noise: float


@cache
def sources() -> dict[str, Source]:
    table = LOG.read_text().partition("## Where figures come from")[2]
    found = {}
    for line in re.findall(r"^\| (`.*) \|$", table, re.MULTILINE):
        name, command, measured, result, noise = (cell.strip() for cell in line.split("|"))
        found[name.strip("`")] = Source(command, measured, result.strip("`"), float(noise or 0))
    return found


@dataclass(frozen=True)
class Marker:
    """What a comment in a page says."""

    name: str
    rows: dict[str, str] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Marker:
        name, *options = (part.strip() for part in text.split("|"))
        told = dict(option.split(": ", 1) for option in options)
        lists = {
            key: tuple(each.strip() for each in told.pop(key, "").split(",") if each.strip()) for key in ("only", "not")
        }
        return cls(name, told, lists["only"], lists["not"])

    def values(self) -> list[float]:
        """Numbers of the result file that a page may show; none where there is no file."""
        path = ROOT / sources()[self.name].result
        if path.suffix != ".json":
            return []
        content = json.loads(path.read_text())
        chosen = [*content.get("rows", []), content.get("figures", {})]
        for key, value in self.rows.items():
            chosen = [row for row in chosen if str(row.get(key)) == value]
        return [
            number
            for row in chosen
            for key, value in row.items()
            if not self.only or key in self.only
            for number in numbers(value)
        ]


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


@dataclass
class Block:
    """A paragraph, list or table, and the markers that count for it."""

    page: str
    line: int
    text: str
    markers: list[Marker]

    def figures(self) -> list[str]:
        """Numbers that claim something about the world, as they are written."""
        plain = re.sub(r"`[^`]*`|\]\([^)]*\)|<[^>]*>", " ", self.text)
        found = [number for number, _ in WITH_UNIT.findall(plain)] + [
            part for pair in PARTS.findall(plain) for part in pair
        ]
        if plain.lstrip().startswith("|"):
            found += [first or second for first, second in IN_CELL.findall(plain)]
        excluded = {each for marker in self.markers for each in re.findall(NUMBER, " ".join(marker.excluded))}
        return [each for each in dict.fromkeys(found) if each not in excluded]


def blocks(page: Path) -> Iterator[Block]:
    markers: list[Marker] = []
    fresh = False  # whether the markers were read since the last block
    lines: list[str] = []
    fenced = False
    for number, line in enumerate([*page.read_text().splitlines(), ""], 1):
        marker = MARKER.fullmatch(line.strip())
        heading = line.startswith("#")
        fence = line.startswith("```")
        if (not line.strip() or marker or heading or fence) and lines:
            yield Block(page.name, number - len(lines), "\n".join(lines), list(markers))
            lines, fresh = [], False
        if fence:
            fenced = not fenced
        elif fenced:
            continue
        elif heading:
            markers, fresh = [], False
        elif marker:
            markers = [*(markers if fresh else []), Marker.parse(marker[1])]
            fresh = True
        elif line.strip():
            lines.append(line)


BLOCKS = [block for page in PAGES for block in blocks(page) if block.figures()]


def agrees(shown: str, value: float, noise: float) -> bool:
    number = float(shown.replace(",", ""))
    digits = len(shown.partition(".")[2])
    return any(abs(value * scale - number) <= 0.5001 * 10**-digits + noise * abs(number) for scale in SCALES)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}:{block.line}")
def test_every_figure_names_its_source(block: Block):
    assert block.markers, (
        f"figures without a source: {block.figures()}; put a marker before them (see docs/decisions.md)"
    )
    unknown = [marker.name for marker in block.markers if marker.name not in sources()]
    assert not unknown, f"docs/decisions.md has no such source: {unknown}"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}:{block.line}")
def test_figures_are_those_of_the_result_file(block: Block):
    files = [marker for marker in block.markers if (ROOT / sources()[marker.name].result).suffix == ".json"]
    if not files or len(files) < len(block.markers):
        return  # one of the sources was measured by hand: which figure is whose is not known
    noise = max(sources()[marker.name].noise for marker in files)
    values = [value for marker in files for value in marker.values()]
    stale = [shown for shown in block.figures() if not any(agrees(shown, value, noise) for value in values)]
    assert not stale, f"{[marker.name for marker in files]} does not have {stale}; measure again, or mend the page"


@pytest.mark.parametrize("name", sources())
def test_a_source_can_be_run_again(name: str):
    source = sources()[name]
    if name in ("rule", "reported"):
        return
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = [each for each in re.findall(r"make ([a-z-]+)", source.command) if each not in targets]
    files = re.findall(r"(?:benchmarks|tests|core)/[\w/]+(?:\.py)?", source.command)
    assert not named, f"the Makefile has no target {named}"
    assert [each for each in files if not (ROOT / each).exists()] == []
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", source.measured)
    file, _, test = source.result.partition("::")
    if source.result != "by hand":
        assert (ROOT / file).is_file()
        assert f"def {test}(" in (ROOT / file).read_text() or not test


def test_every_source_is_used():
    used = {marker.name for page in PAGES for block in blocks(page) for marker in block.markers}
    assert set(sources()) - used == set()


def test_the_check_finds_figures_and_stale_ones(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "It takes 3 s.\n\n"
        "<!-- figures: sync-sizes | data: synthetic 0.67 % | format: level 0 | only: bits/change | not: 0.7 % -->\n"
        "At 0.7 % it takes 25.2 bits.\n\n| a |\n|---|\n| 25.3 |\n\n# Next\n\nAll 64 of 64, in `9 s`.\n"
    )
    found = list(blocks(page))
    assert [block.figures() for block in found] == [["3"], ["25.2"], ["25.3"], ["64"]]
    assert [len(block.markers) for block in found] == [0, 1, 1, 0]
    with pytest.raises(AssertionError, match="without a source"):
        test_every_figure_names_its_source(found[0])
    test_figures_are_those_of_the_result_file(found[1])
    with pytest.raises(AssertionError, match="does not have"):
        test_figures_are_those_of_the_result_file(found[2])


def test_the_codecs_still_have_the_sizes_of_the_result_file(monkeypatch: pytest.MonkeyPatch):
    """The quickest part of `make bench-sync`, whose figures are on the front page: the same on every machine."""
    import sizes

    monkeypatch.setattr(sizes, "PEERS", ())
    series = next(iter(sizes.synthetic(8 << 20)))
    rows = json.loads((ROOT / sources()["sync-sizes"].result).read_text())["rows"]
    stored = {row["format"]: row["bytes"] for row in rows if row["data"] == series.name}
    for level, found in sizes.measure(series).bytes.items():
        assert found == pytest.approx(stored[level], rel=0.005)
