"""Compile what the first delta needs while nobody waits for it: numba takes up to 20 s on a new machine, once."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Iterable

import torch

logger = logging.getLogger(__name__)

_started: set[tuple[torch.dtype, torch.dtype, int]] = set()
_lock = threading.Lock()
_NAME = "slipstream-warm-up"
"""Of its threads."""
_PATIENCE = 600.0
"""Seconds; a compiler that shares two cores with fourteen processes took more than 60."""
_leaving = threading.Event()


def warm_up(dtypes: Iterable[tuple[torch.dtype, torch.dtype]], levels: Iterable[int]) -> threading.Thread | None:
    """Run small updates through both ends of a sync, in the background; what has been started before is left out.

    A sync that begins meanwhile is right and waits no longer than it would have: it needs the same kernels. Only for
    what runs on the host: launches from another thread could meet an engine that captures a CUDA graph. A process that
    is forked meanwhile inherits the compiler's lock as it is: a kernel that is called there may wait for ever.

    Args:
        dtypes: (dtype of the trainer, dtype of the engine) of the tensors.
        levels: codec levels.

    Returns:
        The thread, a daemon, or None when there is nothing to do.
    """
    with _lock:
        new = sorted({(*pair, level) for pair in dtypes for level in levels} - _started, key=str)
        _started.update(new)
    if not new:
        return None
    thread = threading.Thread(target=_run_all, args=(new,), name=_NAME, daemon=True)
    thread.start()
    atexit.register(_leave, thread)
    return thread


def _leave(thread: threading.Thread) -> None:
    """Wait for the case at hand: threads that outlive the interpreter abort the process, out of C++ frames."""
    _leaving.set()
    thread.join()


def _run_all(cases: list[tuple[torch.dtype, torch.dtype, int]]) -> None:
    for trainer, engine, level in cases:
        if _leaving.is_set():
            return
        try:
            _run(trainer, engine, level)
        except Exception:  # it only saves time: the sync itself will say what is wrong
            logger.debug("could not warm up %s to %s at level %d", trainer, engine, level, exc_info=True)


def _run(trainer: torch.dtype, engine: torch.dtype, level: int) -> None:
    """A seed and a delta, which is applied; large and dense enough that every part of the codec has work."""
    # they import this module
    from slipstream.core.weights.channel import InProcessHub
    from slipstream.core.weights.engine import TensorEngine
    from slipstream.core.weights.publisher import Publisher
    from slipstream.core.weights.subscriber import Subscriber
    from slipstream.core.weights.update import PublisherSettings

    subscriber = Subscriber(TensorEngine({"weight": torch.zeros(256, 256, dtype=engine)}), "warm-up", announce=False)
    publisher = Publisher(PublisherSettings(level=level, verify_every=1))
    weight = torch.linspace(-2, 2, 1 << 16).reshape(256, 256)
    for version in range(2):
        weight[::3, 1::5] *= 1 + 0.01 * version
        hub = InProcessHub()
        end = hub.connect("warm-up")
        worker = threading.Thread(target=subscriber.sync, args=([end], _PATIENCE), name=_NAME, daemon=True)
        worker.start()
        publisher.sync([("weight", weight.to(trainer))], hub, workers=1)
        worker.join()
