"""The Triton twins under Triton's interpreter, in a child process: Triton decides at import how kernels run."""

from pathlib import Path

import pytest

from .tritons import each_triton, run_with


@each_triton
def test_triton_twins(path: str, tmp_path: Path) -> None:
    command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/triton_kernels/interpreted"]
    child = run_with(path, command, tmp_path, interpret=True)
    if child.returncode:
        pytest.fail(f"{child.stdout[-6000:]}\n{child.stderr[-2000:]}", pytrace=False)
    assert " passed" in child.stdout
    assert " skipped" not in child.stdout
