"""Reads an event log back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec


def read_events(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the events of a log in the order they were written.

    A line that a process left unfinished when it died is skipped, be it the last one or followed by the lines of
    another process; so is a last line that is still being written.
    """
    with Path(path).open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                return
            try:
                event = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue
            if isinstance(event, dict):
                yield event
