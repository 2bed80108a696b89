"""What OpenRLHF's modules need at import on a machine without a GPU, here and in the processes that tests start.

Tests here run in `.venv-openrlhf` (see `tests/support/environments.py`); the main pytest reads this file as well.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import environments

SUPPORT = Path(__file__).parents[2] / "support"
PATHS = [str(SUPPORT), str(SUPPORT / "openrlhf_cpu" / "stand_ins")]

if environments.environment_of(Path(__file__)) is None:
    sys.path[:0] = PATHS
    os.environ["PYTHONPATH"] = os.pathsep.join(PATHS)
    os.environ.setdefault("OPENRLHF_CPU_DTYPE", "bfloat16")
    os.environ["DS_ACCELERATOR"] = "cpu"
