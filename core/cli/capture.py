"""Keeps what imported packages print apart from what the command has to say."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def captured() -> Iterator[Callable[[], str]]:
    """Collect standard output and standard error of this process and its children, down to the file descriptors.

    Frameworks greet and warn at import through loggers, warnings, C code and processes of their own.

    :returns: a function that returns the text collected so far.
    """
    with tempfile.TemporaryFile() as file:

        def text() -> str:
            sys.stdout.flush()
            sys.stderr.flush()
            file.seek(0)
            return file.read().decode(errors="replace")

        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        saved = [(number, os.dup(number)) for number in (1, 2)]
        try:
            for number, _ in saved:
                os.dup2(file.fileno(), number)
            yield text
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            for number, copy in saved:
                os.dup2(copy, number)
                os.close(copy)
