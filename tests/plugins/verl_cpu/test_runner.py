"""The runner, against small scripts that stand in for a training run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.plugins.verl.demo.command import TrainingCommand
from slipstream.plugins.verl.demo.runner import StepMetrics, TrainingError, run_training

LOG_STEPS = """
import json, os, sys, time
folder = os.environ["FOLDER"]
os.makedirs(f"{folder}/rollouts")
with open(f"{folder}/metrics.jsonl", "w", buffering=1) as f:
    for step in (1, 2):
        f.write(json.dumps({"step": step, "data": {"critic/score/mean": step / 4, "timing_s/update_weights": 0.5,
            "timing_s/step": 0.0}}) + "\\n")
        with open(f"{folder}/rollouts/{step}.jsonl", "w") as r:
            for prompt in ("b", "a", "a"):
                r.write(json.dumps({"input": prompt, "output": "x", "gts": "y", "score": 0, "step": step}) + "\\n")
"""


def command(folder: Path, code: str, steps: int = 2) -> TrainingCommand:
    # `-c` ignores the Ray folder the runner appends, as any argument.
    return TrainingCommand((sys.executable, "-c", code), {"FOLDER": str(folder)}, folder, steps)


def gone(pid: int) -> bool:
    """Nobody may be there to reap it: a zombie is as dead as none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.05)


def test_metrics_arrive_step_by_step_and_rollouts_are_in_order(tmp_path: Path) -> None:
    seen: list[StepMetrics] = []
    result = run_training(command(tmp_path / "run", LOG_STEPS), on_step=seen.append)
    assert [step.step for step in seen] == [1, 2]
    assert result.steps == seen
    assert result.rewards == [0.25, 0.5]
    assert seen[0].update_weights_seconds == 0.5
    assert seen[0].gen_seconds != seen[0].gen_seconds, "not logged is NaN"
    assert [rollout.prompt for rollout in result.rollouts(2)] == ["a", "a", "b"]


def test_what_an_earlier_run_left_is_not_taken_for_results(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_training(command(folder, LOG_STEPS))
    with pytest.raises(TrainingError, match="ended after 0 of 2 steps"):
        run_training(command(folder, "pass"))


def test_failure_carries_the_end_of_the_log(tmp_path: Path) -> None:
    code = "import sys; print('\\x1b[36m(Worker pid=7)\\x1b[0m the cause', flush=True); sys.exit(3)"
    with pytest.raises(TrainingError, match=r"(?s)exit code 3 after 0 steps.*\(Worker pid=7\) the cause"):
        run_training(command(tmp_path / "run", code))


def test_timeout_ends_the_run_and_everything_it_started(tmp_path: Path) -> None:
    # The grandchild is in a session of its own and ignores the polite signal, as a stuck daemon would.
    grandchild = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    code = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {grandchild!r}], start_new_session=True)\n"
        "open(os.environ['FOLDER'] + '/pid', 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    folder = tmp_path / "run"
    started = time.monotonic()
    with pytest.raises(TrainingError, match="more than 3 s"):
        run_training(command(folder, code), timeout=3.0, grace=1.0)
    assert time.monotonic() - started < 30
    pid = int((folder / "pid").read_text())
    assert gone(pid)


def test_run_ends_when_its_watcher_is_killed(tmp_path: Path) -> None:
    code = "import os, time; open(os.environ['FOLDER'] + '/pid', 'w').write(str(os.getpid())); time.sleep(60)"
    watch = (
        "import sys\nfrom pathlib import Path\n"
        "from slipstream.plugins.verl.demo.command import TrainingCommand\n"
        "from slipstream.plugins.verl.demo.runner import run_training\n"
        f"folder = Path({str(tmp_path)!r})\n"
        f"run_training(TrainingCommand((sys.executable, '-c', {code!r}), {{'FOLDER': str(folder)}}, folder, 1))\n"
    )
    watcher = subprocess.Popen([sys.executable, "-c", watch])
    pid_file = tmp_path / "pid"
    wait_for(lambda: pid_file.exists() and pid_file.read_text())
    watcher.kill()
    watcher.wait()
    wait_for(lambda: gone(int(pid_file.read_text())))


def test_step_metrics_read_from_a_line_of_verls_file_logger() -> None:
    line = json.loads('{"step": 3, "data": {"timing_s/gen": 1.5}}')
    assert StepMetrics(line["step"], line["data"]).gen_seconds == 1.5
