"""Two runs at once, against small scripts that stand in for training runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.plugins.verl.demo.command import TrainingCommand
from slipstream.plugins.verl.demo.runner import TrainingError
from slipstream.plugins.verl.demo.side_by_side import run_side_by_side

# A stuck run: it ignores the polite signal, and so does what it started in a session of its own.
STUCK = """
import os, signal, subprocess, sys, time
from multiprocessing.shared_memory import SharedMemory
signal.signal(signal.SIGTERM, signal.SIG_IGN)
memory = SharedMemory(create=True, size=8)
open("memory", "w").write(memory.name)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
open("pids", "w").write(f"{os.getpid()} {child.pid}\\n")
time.sleep(120)
"""
DEMO = """
import sys
from pathlib import Path
from slipstream.core.cli import demo
from slipstream.core.hooks import Framework
from slipstream.plugins.verl.demo.command import TrainingCommand
from slipstream.plugins.verl.demo.side_by_side import run_side_by_side

def runs(model=None, arguments=()):
    commands = [
        (name, TrainingCommand((sys.executable, "-c", sys.argv[2]), {}, Path(sys.argv[1]) / name, 1)) for name in "ab"
    ]
    run_side_by_side(*commands)

demo._first_with_demo = lambda: Framework("toy", "toy", None, runs)
sys.exit(demo.run("", None, []))
"""


def running(pid: int) -> bool:
    """A zombie is over: nobody may be there to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(("number", "presses"), [(signal.SIGINT, 2), (signal.SIGTERM, 1), (signal.SIGHUP, 1)])
def test_a_signal_ends_both_runs_and_what_they_started(tmp_path: Path, number: signal.Signals, presses: int) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    demo = subprocess.Popen(
        [sys.executable, "-c", DEMO, str(tmp_path), STUCK],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    files = [tmp_path / name / "pids" for name in "ab"]
    deadline = time.monotonic() + 60
    while not all(file.exists() and file.read_text().endswith("\n") for file in files):
        assert demo.poll() is None, demo.communicate()
        assert time.monotonic() < deadline, "the runs did not start"
        time.sleep(0.05)
    assert len(list(temporary.glob("slip-ray-*"))) == 2
    for _ in range(presses):
        os.killpg(demo.pid, number)
        time.sleep(0.5)
    output, errors = demo.communicate(timeout=30)
    assert demo.returncode == 130, errors
    assert errors.splitlines()[-1] == "interrupted"
    assert "Traceback" not in errors
    assert "stopping both runs" in output
    assert list(temporary.glob("slip-ray-*")) == []
    assert not [name for name in "ab" if Path("/dev/shm", (tmp_path / name / "memory").read_text()).exists()]
    assert not [pid for file in files for pid in file.read_text().split() if running(int(pid))]


def test_one_that_fails_ends_the_other(tmp_path: Path) -> None:
    commands = [
        (name, TrainingCommand((sys.executable, "-c", code), {}, tmp_path / name, 1))
        for name, code in (("stuck", STUCK), ("failing", "raise SystemExit('the cause')"))
    ]
    started = time.monotonic()
    with pytest.raises(TrainingError, match=r"(?s)exit code 1.*the cause"):
        run_side_by_side(*commands)
    assert time.monotonic() - started < 30
