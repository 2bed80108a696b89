"""Ends a command that was interrupted in order: what it started is stopped before it exits."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt in the main thread at the first SIGINT, SIGTERM or SIGHUP.

    Later ones change nothing, so that a second Ctrl-C does not cut the cleaning up short. A signal that was ignored
    when the command started stays so: `nohup` and background jobs of a script rely on it.
    """
    first = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if first:
            first = False
            raise KeyboardInterrupt

    usual = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in usual.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
