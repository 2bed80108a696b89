"""Links of the pages that `make docs` does not build: those of the README and of folders."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "benchmarks").glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub and MkDocs write them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_somewhere(page: Path):
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text())
    assert links
    for file, anchor in links:
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{file}: no such file"
        assert not anchor or anchor in anchors(target), f"{file}#{anchor}: no such heading"


def test_the_front_door_and_the_first_page_say_the_same_commands():
    """Both are to be copied by who reads only that one."""
    readme = (ROOT / "README.md").read_text().partition("### verl")[2].split("```")[1]
    page = (ROOT / "docs" / "verl.md").read_text().split("```")[1]
    commands = [line.partition("#")[0].strip() for line in readme.splitlines() if line.partition("#")[0].strip()]
    assert (
        commands
        == [line.partition("#")[0].strip() for line in page.splitlines() if line.partition("#")[0].strip()][
            : len(commands)
        ]
    )
