"""A chain beside live syncs: what the engines have acknowledged is written as files while training goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from slipstream.core.config import ConfigError
from slipstream.core.weights.chain.store import ChainStore
from slipstream.core.weights.chain.writer import ChainReport, ChainWriter
from slipstream.core.weights.publisher import Publisher
from slipstream.core.weights.tensors import TensorSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MirrorReport:
    """How writing one acknowledged version ended."""

    target: int
    """Version of the sync."""
    seconds: float
    chain: ChainReport | None = None
    """What was added; its version counts what is in the chain."""
    error: str = ""
    """Why nothing was added; empty when it was. The next version then starts from the last one in the chain."""


class ChainMirror:
    """Follows one publisher that is given whole tensors. Memory: the model once more, in host memory."""

    def __init__(self, url: str, done: Callable[[MirrorReport], None], *, level: int = 0) -> None:
        """Write nothing yet.

        Args:
            url: of a folder, as fsspec takes it. A chain that is there is replaced by the first version.
            done: called with each outcome, in the thread that wrote it.
            level: codec level of the deltas; sharded readers need 0.
        """
        self._url, self._done, self._level = url, done, level
        self._writer: ChainWriter | None = None
        self._specs: tuple[TensorSpec, ...] = ()
        self._thread: threading.Thread | None = None

    def follow(self, publisher: Publisher) -> None:
        """Write the version that the publisher's workers acknowledged last, in a thread of its own.

        The tensors are read from the publisher's snapshot: call `wait` before it stages the next update. An error ends
        the writing of this version and goes to `done`; a process that ends waits for the thread.
        """
        self.wait()
        self._thread = threading.Thread(target=self._write, args=[publisher], name="slipstream-chain")
        self._thread.start()

    def wait(self) -> float:
        """Wait until the last version is written or has failed; return the seconds that took."""
        start = time.perf_counter()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return time.perf_counter() - start

    def _write(self, publisher: Publisher) -> None:
        start = time.perf_counter()
        target = publisher.acked
        assert target is not None, "a sync was acknowledged"
        report, error = None, ""
        try:
            weights = publisher.acknowledged()
            specs = tuple(TensorSpec.of(name, tensor) for name, tensor in weights)
            if self._writer is None or specs != self._specs:
                self._writer, self._specs = ChainWriter(self._url, level=self._level), specs
            report = self._writer.publish(weights)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
            logger.exception(
                "slipstream: version %d was not written to the chain %s; the run goes on, the next sync tries again",
                target,
                self._url,
            )
        self._done(MirrorReport(target, time.perf_counter() - start, report, error))


def check_chain(url: str) -> None:
    """Refuse a URL that fsspec cannot open here; nothing is read or written.

    Raises:
        ConfigError: the file system is unknown, or its package is not installed.
    """
    try:
        ChainStore(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"slipstream.weight_sync.chain: expected a folder or URL that fsspec opens, got {url!r}: {error}"
        ) from error
