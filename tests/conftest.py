"""What every test shares: a clean import path, recorded data, and the order from quick to slow."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import environments
import pytest

ROOT = Path(__file__).resolve().parent.parent

# `plugins/verl` must never shadow the framework `verl`: nothing of the checkout is importable by its folder name,
# in this process or in the ones it starts.
sys.path[:] = [entry for entry in sys.path if ROOT not in (Path(entry).resolve(), Path(entry).resolve().parent)]

# Run without a network and without phoning home.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# `make` passes the Triton releases to test on; this serves a bare `.venv/bin/pytest`.
_triton_paths = Path(sys.prefix) / "triton-paths"
if _triton_paths.is_file():
    os.environ.setdefault("SLIPSTREAM_TRITON_PATHS", _triton_paths.read_text().strip())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--data", type=Path, default=ROOT / "../shared/data", help="folder of recorded rollouts and traces"
    )


@pytest.fixture(scope="session")
def data_dir(request: pytest.FixtureRequest) -> Path:
    """Recorded rollouts and traces; tests that need them are skipped where there are none."""
    folder: Path = request.config.getoption("--data")
    if not folder.is_dir():
        pytest.skip(f"no recorded data at {folder} (point at it with --data DIR)")
    return folder.resolve()


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if environments.environment_of(module_path):
        return environments.ForeignFile.from_parent(parent, path=module_path)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests first, then real engines, then real training runs: a quick failure is seen quickly."""
    items.sort(key=lambda item: 2 if item.get_closest_marker("run") else 1 if item.get_closest_marker("engine") else 0)
