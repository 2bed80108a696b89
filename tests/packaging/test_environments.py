"""A test file of another environment is one item here; what that pytest says must not get lost."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import environments
import pytest

FILE = environments.ROOT / "tests" / "plugins" / "sglang" / "test_seams.py"


def run(monkeypatch: pytest.MonkeyPatch, output: str, code: int = 0) -> None:
    monkeypatch.setattr(Path, "exists", lambda self: True)
    done = SimpleNamespace(stdout=output, stderr="", returncode=code)
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: done)
    item = SimpleNamespace(path=FILE, config=SimpleNamespace(getoption=lambda name: None))
    environments.ForeignRun.runtest(item)


def test_a_skip_inside_a_file_that_passes_is_a_warning(monkeypatch):
    with pytest.warns(UserWarning, match=r"in \.venv-sglang: SKIPPED \[1\] no GPU here"):
        run(monkeypatch, "SKIPPED [1] no GPU here\n3 passed, 1 skipped in 2 s")


def test_a_file_of_which_nothing_ran_is_a_skip(monkeypatch):
    with pytest.raises(pytest.skip.Exception, match="1 skipped in 2 s"):
        run(monkeypatch, "SKIPPED [1] no GPU here\n1 skipped in 2 s")


def test_a_failure_is_shown_as_that_pytest_printed_it(monkeypatch):
    with pytest.raises(environments.ForeignTestError, match="here is why"):
        run(monkeypatch, "here is why\n1 failed, 2 passed in 2 s", code=1)
