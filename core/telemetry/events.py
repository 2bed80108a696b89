"""Append-only event log: JSON lines that several processes of a run write to one file."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from slipstream.core.config import AUTO_EVENTS, ConfigError, SlipstreamConfig
from slipstream.core.telemetry.records import LogFull, Record

_logger = logging.getLogger("slipstream")
_RESERVED = frozenset({"time", "pid"})
_TAIL = 256  # longer than the line that closes a full log


class EventLog:
    """Writes events to a file that other processes write to as well.

    Each event is one line and one ``write`` in append mode, so lines of different processes do not mix and a crash can
    tear the last line only. When the next line would not fit any more, one line of kind ``log_full`` closes the file
    for every process. A log that cannot be written warns once and stops: it never stops a run.
    """

    def __init__(self, path: str | os.PathLike[str] | None, max_bytes: int = 1 << 30) -> None:
        """Prepare the log; the file is opened, and its folder made, by the first event.

        :param path: the file, or None for a log that does nothing.
        :param max_bytes: size in bytes that the file never exceeds.
        """
        self._path = None if path is None else os.fspath(path)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._owner = os.getpid()

    @property
    def enabled(self) -> bool:
        """Whether events are still written."""
        return self._path is not None

    def emit(self, kind: str, /, **fields: Any) -> None:
        """Append one event with the current time in Unix seconds, the process id and `kind`.

        Values are written as JSON; scalars of numpy and torch as numbers, anything else that JSON lacks as its string.

        :raises ValueError: when a field is named ``time``, ``pid`` or ``kind``.
        """
        if clash := (_RESERVED | {"kind"}) & fields.keys():
            raise ValueError(f"event {kind!r}: expected other field names than {sorted(clash)}; rename the field")
        self._write(kind, fields)

    def write(self, record: Record) -> None:
        """Append one of slipstream's own records, with the current time and the process id."""
        if self._path is not None:
            self._write(*_parts(record))

    def _write(self, kind: str, fields: dict[str, Any]) -> None:
        if self._path is None:
            return
        try:
            self._append(_line(kind, fields))
        except OSError as error:
            _logger.warning("the event log %s cannot be written and stops here: %s", self._path, error)
            self._path = None

    def close(self) -> None:
        """Close the file; a later event opens it again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, line: bytes) -> None:
        if self._owner != os.getpid():  # a fork shares the lock and the descriptor of its parent
            self._lock, self._owner = threading.Lock(), os.getpid()
            self._close()
        with self._lock, _exclusive(self._open()) as descriptor:
            size = os.fstat(descriptor).st_size
            tail = os.pread(descriptor, _TAIL, max(0, size - _TAIL))
            if _closes_log(tail):
                self._path = None
                return
            if tail and not tail.endswith(b"\n"):  # end the line that a crash tore
                line = b"\n" + line
            if size + len(line) > self._max_bytes - _TAIL:
                line = (b"" if tail.endswith(b"\n") or not tail else b"\n") + _line(
                    *_parts(LogFull(bytes=self._max_bytes))
                )
                self._path = None
            os.write(descriptor, line)

    def _open(self) -> int:
        if self._descriptor is None:
            assert self._path is not None
            os.makedirs(os.path.dirname(os.path.abspath(self._path)), exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self._descriptor


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuse a path that no log could be written to, without creating anything; ``auto`` passes.

    :raises ConfigError: naming what is in the way.
    """
    if path == AUTO_EVENTS:
        return
    target = os.path.abspath(path)
    folder = os.path.dirname(target)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if os.path.isdir(target):
        problem = "it is a folder"
    elif not os.path.isdir(folder):
        problem = f"{folder} is not a folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = f"nothing can be written in {folder}"
    elif os.path.exists(target) and not os.access(target, os.R_OK | os.W_OK):
        problem = "the file there cannot be written"
    else:
        return
    raise ConfigError(
        f"slipstream.events: expected a file that can be written, got {os.fspath(path)!r}: {problem}; "
        "choose another path"
    )


def event_log(config: SlipstreamConfig) -> EventLog:
    """Return the event log of the configuration.

    It does nothing when ``slipstream.events`` is null, or still ``auto``: a run without a folder of its own.
    """
    return EventLog(None if config.events == AUTO_EVENTS else config.events)


def _line(kind: str, fields: dict[str, Any]) -> bytes:
    event = {"time": time.time(), "pid": os.getpid(), "kind": kind, **fields}
    return msgspec.json.encode(event, enc_hook=_plain) + b"\n"


def _parts(record: Record) -> tuple[str, dict[str, Any]]:
    fields = {name: getattr(record, name) for name in record.__struct_fields__ if name not in _RESERVED}
    return str(record.__struct_config__.tag), fields


def _plain(value: Any) -> Any:
    """Return a number for a scalar of numpy or torch, the string of anything else."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else str(value)


def _closes_log(tail: bytes) -> bool:
    last = tail.rstrip(b"\n").rpartition(b"\n")[2]
    try:
        event = msgspec.json.decode(last)
    except msgspec.DecodeError:
        return False
    return isinstance(event, dict) and event.get("kind") == "log_full"


@contextlib.contextmanager
def _exclusive(descriptor: int) -> Iterator[int]:
    """Hold the file's lock, so that only one process finds the log full; a file system without locks goes without."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield descriptor
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
