"""Where the demo keeps what it trains and writes, and the lock that keeps two demos apart."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["FolderInUseError", "default_cache", "exclusive"]


class FolderInUseError(RuntimeError):
    """Another process works in the folder; the message says what to do."""


def default_cache() -> Path:
    """Return `$SLIPSTREAM_CACHE`, or `slipstream` under `$XDG_CACHE_HOME` or `~/.cache`: the rule of `make env`."""
    own = os.environ.get("SLIPSTREAM_CACHE")
    if own:
        return Path(own).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().resolve() / "slipstream"


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Make `folder` and keep it to this process; the kernel lets go of it however the process ends.

    Raises:
        FolderInUseError: another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise FolderInUseError(
                f"expected {folder} to be free, found another demo at work there (process {lock.read().strip()}); "
                "wait for it to end, or give this one a cache of its own: SLIPSTREAM_CACHE=/a/folder slipstream demo"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield
