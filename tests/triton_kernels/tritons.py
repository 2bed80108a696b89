"""Which Tritons the tests use: those unpacked under SLIPSTREAM_TRITON_PATHS, else the installed one."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PATHS = [path for path in os.environ.get("SLIPSTREAM_TRITON_PATHS", "").split(os.pathsep) if path]

each_triton = pytest.mark.parametrize("path", PATHS or [""], ids=lambda path: Path(path).name or "installed")


def run_with(path: str, command: list[str], folder: Path, interpret: bool) -> subprocess.CompletedProcess[str]:
    """Run Python with the Triton at `path` ("" is the installed one) in front; skip when there is none to use."""
    if path:
        assert (Path(path) / "triton" / "__init__.py").exists(), f"no triton in {path}: mend SLIPSTREAM_TRITON_PATHS"
    else:
        _skip_unless_installed_is_usable()
    environment = os.environ | {"TRITON_CACHE_DIR": str(folder)}
    environment.pop("TRITON_INTERPRET", None)
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    front = [path, os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(part for part in front if part)
    return subprocess.run(
        [sys.executable, *command], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )


def _skip_unless_installed_is_usable() -> None:
    how = "set SLIPSTREAM_TRITON_PATHS to a folder with an unpacked 3.6 or 3.8 wheel"
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"triton is not installed; {how}")
    if version.startswith("3.9."):
        pytest.skip(f"triton {version} is installed, whose interpreter has known defects; {how}")
