"""A real sync between two processes over ZeroMQ, each of which measures its own peak of resident memory.

Run as a script: prints one JSON line a sync. `peak_memory.py <elements> <share of changes> ...`
"""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from slipstream.core.hooks import plugins
from slipstream.core.weights import Publisher, PublisherSettings, Subscriber, TensorEngine

MATRIX = 1 << 22
TIMEOUT = 120.0


def engine(count: int) -> TensorEngine:
    """Holds matrices as they are, resident from the start."""
    return TensorEngine({f"{i}": torch.full((2048, MATRIX // 2048), 0.5, dtype=torch.bfloat16) for i in range(count)})


def _status(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return 1024 * int(line.split()[1])


def peak(task: Callable[[], object]) -> int:
    """Bytes of resident memory that `task` took at its peak, over what was there before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what earlier syncs freed must not hide what this one takes
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    task()
    return _status("VmHWM") - before


def worker(pipe: Connection, endpoint: str) -> None:
    """The engine's process: one sync for each number of matrices that comes through the pipe."""
    subscribers: dict[int, Subscriber] = {}
    while (count := pipe.recv()) is not None:
        if count not in subscribers:
            subscribers.clear()
            subscribers[count] = Subscriber(engine(count), "worker")
        channel = plugins().transport("zeromq").open("subscriber", endpoint, TIMEOUT)
        pipe.send(peak(partial(subscribers[count].sync, [channel], TIMEOUT)))
        channel.close()


def main(cases: Iterable[tuple[int, float]], chunk: int) -> None:
    """A seed and a delta of each case; the first case is repeated silently, for the kernels to be compiled."""
    torch.set_num_threads(1)
    endpoint = f"ipc://{tempfile.mkdtemp()}/sync"
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=worker, args=(there, endpoint), daemon=True)
    process.start()

    def sync(publisher: Publisher, weights: dict[str, torch.Tensor], what: str, say: bool) -> None:
        here.send(len(weights))
        channel = plugins().transport("zeromq").open("publisher", endpoint, TIMEOUT)
        reports = []
        sender = peak(lambda: reports.append(publisher.sync(weights.items(), channel, 1)))
        channel.close()
        if say:
            row = {"sync": what, "elements": MATRIX * len(weights), "changes": reports[0].changed_elements}
            print(json.dumps(row | {"sender": sender, "worker": here.recv(), "level": reports[0].level}), flush=True)
        else:
            here.recv()

    for number, (elements, share) in enumerate([(MATRIX, 0.01), *cases]):
        for level in (0, 1, 2) if number == 0 else (0, 2):
            publisher = Publisher(PublisherSettings(level=level, timeout=TIMEOUT, chunk_bytes=chunk))
            generator = torch.Generator().manual_seed(number)
            shape = (2048, MATRIX // 2048)
            weights = {
                f"{i}": torch.randn(shape, generator=generator).mul_(0.02).bfloat16() for i in range(elements // MATRIX)
            }
            sync(publisher, weights, "seed", number > 0)
            for _ in range(2):
                for tensor in weights.values():
                    tensor.view(torch.int16)[torch.rand(shape, generator=generator) < share] ^= 1
                sync(publisher, weights, "delta", number > 0)
    here.send(None)
    process.join(TIMEOUT)


if __name__ == "__main__":
    numbers = sys.argv[2:]
    main([(int(e), float(s)) for e, s in zip(numbers[::2], numbers[1::2], strict=True)], int(sys.argv[1]))
