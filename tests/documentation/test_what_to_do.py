"""docs/what-to-do.md quotes messages that the code has, and leaves out no remark of the report."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "what-to-do.md").read_text()
VARIES = "\0"
ELSEWHERE = {"No module named triton_kernels.matmul_ogs"}
"""Messages of other programs."""


def texts(file: Path) -> Iterator[str]:
    """String literals of a file, with `VARIES` for what is filled in."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else VARIES for part in node.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[sdr]", VARIES, node.value)


SOURCES = [text for folder in ("core", "plugins") for file in (ROOT / folder).rglob("*.py") for text in texts(file)]
SYMPTOMS = [
    symptom
    for row in re.findall(r"^\| (`[^|]+) \|", PAGE, re.MULTILINE)
    for symptom in re.findall(r"`([^`]+)`", row)
    if symptom not in ELSEWHERE
]


def is_message(symptom: str) -> bool:
    pattern = ".*".join(map(re.escape, symptom.split("...")))
    return any(re.search(pattern, text, re.DOTALL) for text in SOURCES)


def test_there_is_something_to_check():
    assert len(SYMPTOMS) > 40
    assert is_message("holds other bits than the trainer sent")
    assert not is_message("holds other bats than the trainer sent")


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_a_quoted_message_is_in_the_code(symptom: str):
    assert is_message(symptom), "no message of core/ or plugins/ has this text; was it reworded?"


def test_every_remark_of_the_report_is_on_the_page():
    """A remark is the first argument of `Advice(...)`; the page quotes a part of it."""
    tree = ast.parse((ROOT / "core/telemetry/report/remarks.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Advice"]
    found = [
        "".join(p.value if isinstance(p, ast.Constant) else VARIES for p in call.args[0].values)  # type: ignore[attr-defined,misc]
        if isinstance(call.args[0], ast.JoinedStr)
        else ast.literal_eval(call.args[0])
        for call in calls
    ]
    patterns = [".*".join(map(re.escape, symptom.split("..."))) for symptom in SYMPTOMS]
    about_the_file = ("newer slipstream", "largest size", "earlier runs")
    missing = [text for text in found if not any(re.search(each, text) for each in patterns)]
    assert [text for text in missing if not any(part in text for part in about_the_file)] == []
