"""Runs several parties one at a time, in a fixed order, on a clock that moves only when all of them wait.

A lost message then costs no real time, a run is the same every time, and how long a call waited is known exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Outcome:
    """How one party ended."""

    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0
    """Virtual time it took."""


@dataclass
class _Task:
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ready: Callable[[], bool] = lambda: True
    deadline: float = 0.0
    timed_out: bool = False
    done: bool = False
    outcome: Outcome = field(default_factory=Outcome)


class VirtualTime:
    """`run` parties; inside them, `wait` is the only way to wait."""

    def __init__(self) -> None:
        self.now = 0.0
        self._tasks: list[_Task] = []
        self._current = 0
        self._finished = threading.Event()

    def monotonic(self) -> float:
        """Stands in for `time.monotonic` and `time.perf_counter`."""
        return self.now

    perf_counter = monotonic

    def run(self, parties: Mapping[str, Callable[[], Any]], wall_seconds: float = 60.0) -> dict[str, Outcome]:
        """Run all parties to their end; `wall_seconds` is real time."""
        self._tasks = [_Task() for _ in parties]
        self._finished.clear()
        start = self.now
        threads = [
            threading.Thread(target=self._body, args=(task, call, start), name=name, daemon=True)
            for task, (name, call) in zip(self._tasks, parties.items(), strict=True)
        ]
        for thread in threads:
            thread.start()
        self._current = len(self._tasks) - 1
        self._hand_over()
        assert self._finished.wait(wall_seconds), f"{[t.name for t in threads if t.is_alive()]} hang in real time"
        for thread in threads:
            thread.join(wall_seconds)
        return dict(zip(parties, (task.outcome for task in self._tasks), strict=True))

    def wait(self, ready: Callable[[], bool], timeout: float) -> bool:
        """Let others run until `ready`; False when `timeout` virtual seconds passed first."""
        if ready():
            return True
        task = self._tasks[self._current]
        task.ready, task.deadline, task.timed_out = ready, self.now + timeout, False
        self._hand_over()
        task.go.acquire()
        return not task.timed_out

    def _body(self, task: _Task, call: Callable[[], Any], start: float) -> None:
        task.go.acquire()
        try:
            task.outcome.value = call()
        except BaseException as error:
            task.outcome.error = error
        task.outcome.seconds = self.now - start
        task.done = True
        self._hand_over()

    def _hand_over(self) -> None:
        count = len(self._tasks)
        order = [(self._current + 1 + step) % count for step in range(count)]
        waiting = [index for index in order if not self._tasks[index].done]
        if not waiting:
            self._finished.set()
            return
        chosen = next((index for index in waiting if self._tasks[index].ready()), None)
        if chosen is None:
            chosen = min(waiting, key=lambda index: self._tasks[index].deadline)
            self.now = max(self.now, self._tasks[chosen].deadline)
            self._tasks[chosen].timed_out = True
        self._current = chosen
        self._tasks[chosen].go.release()
