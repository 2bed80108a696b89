"""``slipstream bench``: runs a benchmark of the source tree that this installation is linked to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


class NoSourceTreeError(RuntimeError):
    """The benchmarks are not where this installation can find them."""


def run(area: str, arguments: Sequence[str]) -> int:
    """Run benchmarks/<area>/run.py in a process of its own and return its exit status.

    :raises NoSourceTreeError: when slipstream was not installed from a checkout, or it has no such benchmark.
    """
    benchmarks = Path(__file__).resolve().parents[2] / "benchmarks"
    script = benchmarks / area / "run.py"
    if not script.is_file():
        known = sorted(path.parent.name for path in benchmarks.glob("*/run.py"))
        raise NoSourceTreeError(
            f"expected {script}, found {'the benchmarks ' + ', '.join(known) if known else 'no source tree'}; "
            f"benchmarks need peers and are not installed: run this from a checkout set up by `make env`"
        )
    return subprocess.run([sys.executable, str(script), *arguments], check=False).returncode
