"""A pipeline's leases over a whole run: waits for them, keeps them alive, and says what it waited for."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from slipstream.core.graph.arbiter_actor import ArbiterClient
from slipstream.core.graph.errors import LeaseError
from slipstream.core.graph.leases import Directive, Lane, Lease, Request

_logger = logging.getLogger("slipstream")


def worker_of(node: str, device: str) -> int:
    """Return the number under which a device is known to every arbiter: 52 bits of a hash of its name."""
    digest = hashlib.blake2b(f"{node}/{device}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 12


@dataclass
class Waited:
    """What `LeaseHolder.acquire` returns."""

    seconds: float
    alone: bool
    """The arbiter could not be reached, so nobody was asked."""
    shared: bool
    """Somebody else runs on some of the workers."""


class LeaseHolder:
    """At most one lease a lane, renewed by a thread until it is released.

    A lease that the arbiter does not know is one of an arbiter before it, or has expired because this process stood
    still: it is reported again (`Arbiter.adopt`), since the stage cannot be taken back.
    """

    def __init__(
        self,
        client: ArbiterClient,
        pipeline: str,
        workers: Iterable[int],
        *,
        renew_seconds: float = 15.0,
        on_directive: Callable[[Directive], None] | None = None,
    ) -> None:
        """Start the thread.

        Args:
            workers: every one that the pipeline has processes on.
            renew_seconds: between renewals; several of them must fit into the time of a lease.
            on_directive: called in that thread with what the holder of a rollout is asked to do, again and again until
                it is done; None: rollouts of this pipeline cannot be interrupted.
        """
        self.pipeline, self.workers = pipeline, frozenset(workers)
        self.counts: Counter[str] = Counter()
        """asks, granted, alone, adopted, shared; since the start."""
        self._client, self._renew_seconds, self._on_directive = client, renew_seconds, on_directive
        self._leases: dict[Lane, Lease] = {}
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="slipstream-leases", daemon=True)
        self._thread.start()

    def holds(self, lane: Lane) -> bool:
        """Whether there is a lease for the lane."""
        return lane in self._leases

    def acquire(self, lane: Lane, kind: str, memory: float, remaining: float = 0.0) -> Waited:
        """Wait for all workers of the pipeline. The arguments are those of `Request`.

        Raises:
            LeaseError: the request can never be granted, or the pipeline has that lane already.
        """
        request = Request(self.pipeline, lane, kind, self.workers, len(self.workers), memory, remaining)
        began = time.monotonic()
        lease = self._client.ask(request)
        with self._lock:
            self._leases[lane] = lease
        alone, shared = lease.id == 0, lease.share < 1.0
        self.counts.update(asks=1, granted=not alone, alone=alone, shared=shared)
        return Waited(time.monotonic() - began, alone, shared)

    def try_acquire(self, lane: Lane, kind: str, memory: float) -> bool:
        """Take all workers of the pipeline if nobody has to wait for it; the arguments are those of `Request`."""
        lease = self._client.ask_now(Request(self.pipeline, lane, kind, self.workers, len(self.workers), memory))
        if lease is not None:
            with self._lock:
                self._leases[lane] = lease
        return lease is not None

    def release(self, lane: Lane) -> None:
        """Give the lane's workers back; nothing happens without a lease."""
        with self._lock:
            lease = self._leases.pop(lane, None)
        if lease is not None:
            self._client.release(lease)

    def close(self) -> None:
        """Give everything back and end the thread."""
        self._ended.set()
        with self._lock:
            self._leases.clear()
        try:
            self._client.withdraw(self.pipeline)
        except Exception as error:  # often the end of a run that failed, whose own error matters more
            _logger.warning("slipstream: leases could not be given back, and will expire: %s", error)

    def _keep(self) -> None:
        while not self._ended.wait(self._renew_seconds):
            for lane in list(self._leases):
                try:
                    self._renew(lane)
                except Exception as error:  # the run goes on; the next renewal may work
                    _logger.warning("slipstream: a lease could not be renewed: %s", error)

    def _renew(self, lane: Lane) -> None:
        with self._lock:  # or it would be renewed, and adopted again, while it is being released
            lease = self._leases.get(lane)
            if lease is None:
                return
            directive = None
            try:
                if lease.id == 0:
                    raise LeaseError("made up here")
                directive = self._client.renew(lease)
            except LeaseError:
                adopted = self._client.adopt(lease)
                if adopted.id != 0 and adopted.id != lease.id:
                    self._leases[lane] = adopted
                    self.counts["adopted"] += 1
        if directive is not None and self._on_directive is not None:
            self._on_directive(directive)
