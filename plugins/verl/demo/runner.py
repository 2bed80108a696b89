"""Run one training command, watch it, and return what it measured.

The run is a child in a session of its own and carries a mark in its environment. What it starts, Ray's daemons and
workers included, inherits both; whatever is left of the run at the end is found by them and killed, and nothing else
is touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.plugins.verl.demo.command import TrainingCommand

__all__ = ["Rollout", "RunResult", "StepMetrics", "TrainingError", "run_training", "stop_run"]

_LIBC = ctypes.CDLL(None)
MARK = "SLIPSTREAM_RUN_ID"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_NOISE = re.compile(r"^\s*$|\(.*pid=\d+\)\s*('|\{| +')")
_STAGES = (
    ("Started a local Ray instance", "starting workers"),
    ("Initializing a V1 LLM engine", "starting vLLM"),
    ("Training Progress", "first step"),
)


@dataclass(frozen=True)
class StepMetrics:
    """What verl logged for one training step."""

    step: int
    values: dict[str, Any]

    def _number(self, name: str) -> float:
        return float(self.values.get(name, float("nan")))

    @property
    def reward(self) -> float:
        """Mean reward of the step's responses."""
        return self._number("critic/score/mean")

    @property
    def response_length(self) -> float:
        return self._number("response_length/mean")

    @property
    def gen_seconds(self) -> float:
        """Time until all responses of the step were there."""
        return self._number("timing_s/gen")

    @property
    def update_actor_seconds(self) -> float:
        return self._number("timing_s/update_actor")

    @property
    def update_weights_seconds(self) -> float:
        """Time to bring the new weights into the rollout engine."""
        return self._number("timing_s/update_weights")

    @property
    def step_seconds(self) -> float:
        return self._number("timing_s/step")


@dataclass(frozen=True)
class Rollout:
    """One response as verl dumped it."""

    step: int
    prompt: str
    response: str
    solution: str
    score: float


@dataclass(frozen=True)
class RunResult:
    """A finished run."""

    steps: list[StepMetrics]
    seconds: float
    """Wall time of the whole process, start to exit."""
    startup_seconds: float
    """Wall time until the first step was logged, less that step."""
    log: Path
    rollout_folder: Path
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def rewards(self) -> list[float]:
        return [step.reward for step in self.steps]

    def rollouts(self, step: int) -> list[Rollout]:
        """Return the responses of one step, in an order that does not depend on verl's random prompt ids."""
        path = self.rollout_folder / f"{step}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        result = [
            Rollout(line["step"], line["input"], line["output"], line["gts"], float(line["score"])) for line in lines
        ]
        # verl writes the samples of a prompt in their order but sorts prompts by random id; this sort is stable.
        return sorted(result, key=lambda rollout: rollout.prompt)


class TrainingError(RuntimeError):
    """The run ended without doing its steps; the message has the end of its log."""

    def __init__(self, reason: str, log: Path) -> None:
        self.log = log
        super().__init__(f"{reason}\n--- end of {log} ---\n{_tail(log)}")


def _tail(log: Path, lines: int = 60) -> str:
    with log.open(errors="replace") as stream:
        kept = deque((line for line in map(_plain, stream) if not _NOISE.match(line)), maxlen=lines)
    return "\n".join(kept)


def _plain(line: str) -> str:
    return _ANSI.sub("", line.rstrip("\n")).rsplit("\r", 1)[-1]


def _remaining(session: int, mark: str) -> list[int]:
    """Return the processes that belong to the run: in its session, or carrying its mark.

    Ray's agents overwrite their environment with a title, and some programs start a session of their own: neither
    sign alone is enough.
    """
    needle = f"{MARK}={mark}".encode()
    result = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            # The fields after the command's name, which may hold anything: state, parent, group, session.
            state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if state == "Z":
                continue
            if int(its_session) == session or needle in (entry / "environ").read_bytes().split(b"\0"):
                result.append(int(entry.name))
    return result


def _shared_memory(pids: list[int]) -> set[Path]:
    """Return the named shared memory that these processes have mapped; who is killed leaves it behind, in memory."""
    result = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            result |= {Path(line[line.index("/dev/shm/") :]) for line in lines if "/dev/shm/psm_" in line}
    return result


def stop_run(process: subprocess.Popen[bytes], mark: str, grace: float) -> None:
    """End the run and everything it started: first politely, then not."""
    segments = _shared_memory(_remaining(process.pid, mark))
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    for kind in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + grace
        for pid in _remaining(process.pid, mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, kind)
        while time.monotonic() < deadline and _remaining(process.pid, mark):
            time.sleep(0.1)
    process.wait()
    for segment in segments:  # "... (deleted)" where its owner was faster
        segment.unlink(missing_ok=True)


def _end_with_parent() -> None:
    """Ask the kernel to end this process when its parent dies, however that happens (Linux only).

    Runs between fork and exec, so it loads nothing.
    """
    with contextlib.suppress(AttributeError):
        _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _read_metrics(path: Path, seen: int) -> list[StepMetrics]:
    """Return the complete lines of the metrics file after the first `seen`."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [StepMetrics(int(item["step"]), item["data"]) for item in map(json.loads, lines[seen:])]


def _stage(log: Path) -> str:
    """Name what the run is doing before its first step, judging by its log."""
    text = log.read_text(errors="replace")
    return next((name for needle, name in reversed(_STAGES) if needle in text), "starting")


def run_training(
    command: TrainingCommand,
    *,
    timeout: float = 900.0,
    grace: float = 10.0,
    on_step: Callable[[StepMetrics], None] | None = None,
    on_stage: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    address: str | None = None,
) -> RunResult:
    """Run `command` to its end.

    Args:
        command: From :func:`slipstream.plugins.verl.demo.command.training_command`.
        timeout: Seconds after which the run is killed.
        grace: Seconds between asking a process to end and killing it.
        on_step: Told about each step as soon as verl has logged it.
        on_stage: Told what is going on before the first step.
        cancelled: Asked several times a second; the run is ended once it returns true.
        address: Of the Ray cluster that the run joins; None: it starts one of its own.

    Returns:
        The metrics of all steps.

    Raises:
        TrainingError: The process failed, did not do all its steps, or took too long.
    """
    command.folder.mkdir(parents=True, exist_ok=True)
    for stale in (command.metrics_file, command.rollout_folder):
        shutil.rmtree(stale) if stale.is_dir() else stale.unlink(missing_ok=True)
    log = command.folder / "log.txt"
    mark = uuid.uuid4().hex
    # Short, since Ray puts sockets under it and their paths have a limit; and ours, so that it can be removed.
    ray_folder = Path(tempfile.mkdtemp(prefix="slip-ray-"))
    environment = {**os.environ, **command.env, MARK: mark}
    environment.pop("RAY_ADDRESS", None)
    key, value = ("_temp_dir", ray_folder) if address is None else ("address", address)
    steps: list[StepMetrics] = []
    started = time.monotonic()
    first = started
    stage = ""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command.argv, f"+ray_kwargs.ray_init.{key}={value}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=command.folder,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    try:
        while True:
            code = process.poll()
            for step in _read_metrics(command.metrics_file, len(steps)):
                if not steps:
                    first = time.monotonic()
                steps.append(step)
                if on_step is not None:
                    on_step(step)
            if code is not None:
                break
            if cancelled():
                raise TrainingError("the run was cancelled", log)
            if time.monotonic() - started > timeout:
                raise TrainingError(f"training took more than {timeout:g} s ({len(steps)} steps done)", log)
            if on_stage is not None and not steps and (now := _stage(log)) != stage:
                stage = now
                on_stage(stage)
            time.sleep(0.2)
    finally:
        stop_run(process, mark, grace)
        shutil.rmtree(ray_folder, ignore_errors=True)
    if code != 0:
        raise TrainingError(f"training failed with exit code {code} after {len(steps)} steps", log)
    if len(steps) < command.steps:
        raise TrainingError(f"training ended after {len(steps)} of {command.steps} steps", log)
    return RunResult(
        steps=steps,
        seconds=time.monotonic() - started,
        startup_seconds=first - started - steps[0].step_seconds,
        log=log,
        rollout_folder=command.rollout_folder,
    )
