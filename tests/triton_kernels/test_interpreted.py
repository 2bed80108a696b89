"""The Triton twins under Triton's interpreter, in a child process: Triton decides at import how kernels run."""

from pathlib import Path

import pytest

from .tritons import REPOSITORY, each_triton, run_with

FILES = sorted(path.name for path in (REPOSITORY / "tests/triton_kernels/interpreted").glob("test_*.py"))


@each_triton
@pytest.mark.parametrize("file", FILES)
def test_triton_twins(file: str, path: str, tmp_path: Path) -> None:
    command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/triton_kernels/interpreted/{file}"]
    child = run_with(path, command, tmp_path, interpret=True)
    if child.returncode:
        pytest.fail(f"{child.stdout[-6000:]}\n{child.stderr[-2000:]}", pytrace=False)
    assert " passed" in child.stdout
    assert " skipped" not in child.stdout
