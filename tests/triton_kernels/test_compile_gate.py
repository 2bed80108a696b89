"""Every kernel compiled for GPUs that are not there: no spills, few registers, wide dense loads."""

import json
from pathlib import Path
from typing import Any

import pytest

from .tritons import each_triton, run_with

MOST_REGISTERS = 128


def faults(row: dict[str, Any]) -> list[str]:
    found = []
    if row["spilled"]:
        found.append(f"spills {row['spilled']} bytes")
    if row["registers"] > MOST_REGISTERS:
        found.append(f"{row['registers']} registers")
    if row["dense"] and (row["wide"] < row["dense"] or row["narrow"] > row["gathers"]):
        found.append(f"{row['narrow'] - row['gathers']} narrow loads {row['narrow_kinds']}, {row['wide']} wide")
    return found


def table(rows: list[dict[str, Any]]) -> str:
    columns = ["triton", "target", "kernel", "registers", "spilled", "shared", "wide", "narrow"]
    lines = ["  ".join(column.ljust(20 if column == "kernel" else 9) for column in columns)]
    for row in rows:
        cells = [str(row[column]).ljust(20 if column == "kernel" else 9) for column in columns]
        lines.append("  ".join([*cells, "; ".join(faults(row))]))
    return "\n".join(lines)


@each_triton
def test_kernels_compile_well(path: str, tmp_path: Path) -> None:
    child = run_with(path, [str(Path(__file__).with_name("gate.py"))], tmp_path, interpret=False)
    if child.returncode:
        pytest.fail(f"a kernel does not compile\n{child.stderr[-6000:]}", pytrace=False)
    rows = [json.loads(line) for line in child.stdout.splitlines()]
    assert {row["target"] for row in rows} == {"sm_80", "sm_90", "gfx942"}
    if any(map(faults, rows)):
        pytest.fail(table(rows), pytrace=False)
