"""The GPU benchmark cannot rot where there is no GPU: its command line, its bars, and its checks in the interpreter."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from .tritons import PATHS, REPOSITORY, run_with

SCRIPT = REPOSITORY / "benchmarks/gpu/run.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    child = subprocess.run([sys.executable, str(SCRIPT), "--quick"], capture_output=True, text=True, check=False)
    assert child.returncode == 2
    assert "no GPU here" in child.stdout


def test_the_command_line(benchmark: ModuleType) -> None:
    assert vars(benchmark.parse([])) == {"quick": False, "elements": None, "check_only": False}
    assert vars(benchmark.parse(["--quick", "--elements", "9"])) == {"quick": True, "elements": 9, "check_only": False}
    with pytest.raises(SystemExit):
        benchmark.parse(["--elements", "0"])


def test_bars_look_at_the_largest_size_at_the_usual_density(benchmark: ModuleType) -> None:
    row = {"operation": "extract", "target_density": 0.006, "torch_milliseconds": 9.0}
    rows = [row | {"elements": n, "of_copy": share} for n, share in ((8, 0.1), (512, 0.69))]
    rows += [row | {"operation": "scatter", "elements": 512, "of_copy": 0.2}]
    rows += [row | {"operation": "fingerprint", "elements": 512, "of_copy": 0.8}]
    assert [(bar["name"].split()[0], bar["ok"]) for bar in benchmark.bars(rows)] == [
        ("extract", False),
        ("fingerprint", True),
    ]


def test_checks_run_in_the_interpreter(tmp_path: Path) -> None:
    command = [str(SCRIPT), "--check-only", "--quick", "--elements", "1500"]
    child = run_with(PATHS[-1] if PATHS else "", command, tmp_path, interpret=True)
    assert child.returncode == 0, child.stderr[-3000:]
    lines = [line.split() for line in child.stdout.splitlines() if line.endswith("right")]
    assert {" ".join(line[:-3]) for line in lines} == {
        "extract",
        "fused cast",
        "scatter",
        "undo",
        "fingerprint",
        *(f"{way} level {level}" for way in ("encode", "decode", "stage") for level in range(3)),
        *(f"apply, undo {level}" for level in range(3)),
    }
    assert len(lines) == 34


def test_a_wrong_bit_fails_the_check(tmp_path: Path) -> None:
    code = """
import sys
sys.path.insert(0, "benchmarks/gpu")
import torch
from operations import operations
from slipstream.triton_kernels.extract import gpu
from updates import draw
right = gpu.extract
gpu.extract = lambda old, new: (right(old, new)[0], right(old, new)[1] ^ 1)
next(operations(draw(300, 0.05, "cpu"))).check()
"""
    child = run_with(PATHS[-1] if PATHS else "", ["-c", code], tmp_path, interpret=True)
    assert child.returncode == 1
    assert "extract: the Triton twin is not bit for bit its reference" in child.stderr
