"""A progress line for work whose state can be counted."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable

WIDTH = 24


class Progress:
    """Shows `count() / total` while the block runs: a bar on a terminal, a line now and then in a log."""

    def __init__(self, title: str, total: int, count: Callable[[], int], note: Callable[[], str]) -> None:
        self.title, self.total, self.count, self.note = title, total, count, note
        self._stop = threading.Event()
        self._started = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._show()
        if self._terminal:
            print(flush=True)

    def _watch(self) -> None:
        pause = 0.5 if self._terminal else 15.0
        self._show()
        while not self._stop.wait(pause):
            self._show()

    def _show(self) -> None:
        done = min(self.count(), self.total)
        filled = WIDTH * done // self.total
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        bar = "#" * filled + "." * (WIDTH - filled)
        line = f"{self.title} [{bar}] {done}/{self.total} packages, {minutes}:{seconds:02d} {self.note()}"
        if self._terminal:
            print(f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
        else:
            print(line, flush=True)
