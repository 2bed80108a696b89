"""OpenRLHF's own tests, with slipstream installed and active in their process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import files

import pytest


@pytest.mark.timeout(900)
def test_they_all_pass(tmp_path):
    theirs = sorted(
        str(file.locate()) for file in files("openrlhf") or () if re.match(r"tests/test_.*\.py$", str(file))
    )
    assert len(theirs) >= 14
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "openrlhf_cpu.active", *theirs],
        cwd=tmp_path,
        env={**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    assert int(passed[1]) >= 221, "those of 0.11.2"
