"""Tests of a framework that cannot share verl's environment run in their own, and are reported by the one pytest.

OpenRLHF and SGLang pin other versions of the same packages, so `make` sets up `.venv-<name>` for each. A test file of
such a framework is one item here: it runs `pytest FILE` with that environment's interpreter and passes if that passes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = {"tests/plugins/openrlhf": "openrlhf", "tests/plugins/sglang": "sglang"}
TIME_LIMIT = 1500  # seconds for one file


def environment_of(path: Path) -> str | None:
    """The environment that runs `path`, or None when this interpreter does."""
    for folder, name in ENVIRONMENTS.items():
        if path.is_relative_to(ROOT / folder) and Path(sys.prefix).name != f".venv-{name}":
            return name
    return None


class ForeignFile(pytest.Module):
    """A test file that this interpreter does not import."""

    def collect(self) -> Iterator[pytest.Item]:
        yield ForeignRun.from_parent(self, name=f"in {environment_of(self.path)}")


class ForeignRun(pytest.Item):
    """`pytest FILE` in the environment of FILE."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.add_marker("run")
        self.add_marker(pytest.mark.timeout(TIME_LIMIT + 60))

    def runtest(self) -> None:
        name = environment_of(self.path)
        python = ROOT / f".venv-{name}" / "bin" / "python"
        if not python.exists():
            pytest.skip(f"no .venv-{name} here (make env-{name})")
        command = [str(python), "-m", "pytest", str(self.path), "-q", "-rs", "--color=no", "--durations=5"]
        command += [f"--data={self.config.getoption('--data')}"]
        # The main environment's Triton and script folder are not this one's.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT, check=False
        )
        summary = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "no output"
        if done.returncode:
            raise ForeignTestError(f"{done.stdout}\n{done.stderr}")
        if "passed" not in summary:
            pytest.skip(f"in .venv-{name}: {summary}")
        for line in done.stdout.splitlines():
            if line.startswith("SKIPPED"):  # this item passes, so nothing else would show it
                warnings.warn(f"in .venv-{name}: {line}", stacklevel=1)
        print(summary)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: None = None) -> str:
        if isinstance(excinfo.value, ForeignTestError):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.path.relative_to(ROOT)} {self.name}"


class ForeignTestError(Exception):
    """Tests failed in another environment; the message is what that pytest printed."""
