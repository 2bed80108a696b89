"""Transports on one host, interleaved in one run: time and CPU of a dense sync and of a delta, beside ZeroMQ.

    .venv/bin/python benchmarks/sync/transports.py [--elements 64e6] [--rate 0.55e-6] [--workers 1 2] [--rounds 5]

One trainer process and engine worker processes that each hold the whole model; all transports carry the same updates
(those of `limited_link.Masters`) in turn, and every worker ends bit for bit equal to the trainer. `deliver` is the time
from the first message to the last acknowledgement, decoding and writing included, so it is the whole of what a
transport can change; CPU time is that of all processes. Medians over the rounds; ratios are of neighbours in time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

from limited_link import TENSORS, Masters, flat_engine
from rich.console import Console
from rich.table import Table

TRANSPORTS = ("zeromq", "shared_memory", "torch_distributed")
TIMEOUT = 120.0


def worker_process(elements: int, told: Connection) -> None:
    """Take part in a sync for every address that comes; answer with CPU seconds and checksums."""
    from slipstream.core.weights import Connections, Subscriber

    engine = flat_engine({str(i): (elements // TENSORS // 1024, 1024) for i in range(TENSORS)})
    subscriber, connections = Subscriber(engine, "engine"), Connections()
    while address := told.recv():
        start = time.process_time()
        with connections.joined([address], TIMEOUT) as channels:
            subscriber.sync(channels, TIMEOUT)
        told.send((time.process_time() - start, engine.checksums()))


class Side:
    """One transport with its publisher and workers."""

    def __init__(self, name: str, elements: int, workers: int, folder: str) -> None:
        from slipstream.core.weights import Publisher, PublisherSettings
        from slipstream.core.weights.transports import bind

        self._settings = {dense: PublisherSettings(timeout=TIMEOUT, level=0, dense=dense) for dense in (False, True)}
        self._publisher = Publisher(self._settings[False])
        self._end = bind(name, f"ipc://{folder}/{name}", True, TIMEOUT)
        context = multiprocessing.get_context("spawn")
        self._workers = []
        for _ in range(workers):
            here, there = context.Pipe()
            context.Process(target=worker_process, args=(elements, there), daemon=True).start()
            self._workers.append(here)

    def sync(self, masters: Masters, dense: bool) -> tuple[float, float]:
        """Seconds of delivery, and of CPU."""
        self._publisher._settings = self._settings[dense]
        update = self._publisher.stage(masters.copies.items())
        address, start = self._end.invite(), time.process_time()
        for worker in self._workers:
            worker.send(address)
        report = self._publisher.deliver(update, self._end, len(self._workers))
        spent = time.process_time() - start
        told = [worker.recv() for worker in self._workers]
        engine = flat_engine({})
        engine.tensors = masters.copies
        if any(checksums != engine.checksums() for _, checksums in told):
            raise RuntimeError("trainer and engine hold different bits")
        return report.deliver_seconds, spent + sum(cpu for cpu, _ in told)

    def close(self) -> None:
        for worker in self._workers:
            worker.send("")
        self._end.close()


def measure(arguments: argparse.Namespace, workers: int) -> dict[tuple[str, bool], list[tuple[float, float]]]:
    """(seconds, CPU seconds) of each round by transport and whether dense; the first sync of each counts as none."""
    masters = Masters(arguments.elements, arguments.rate)
    rows: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        sides = {name: Side(name, arguments.elements, workers, folder) for name in arguments.transports}
        for number in range(arguments.rounds + 1):
            masters.step(number)
            for dense in (False, True):
                for name, side in sides.items():
                    row = side.sync(masters, dense)
                    if number:
                        rows.setdefault((name, dense), []).append(row)
        for side in sides.values():
            side.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=lambda text: int(float(text)), default=64_000_000)
    parser.add_argument("--rate", type=float, default=0.55e-6, help="learning rate; 0.55e-6 changes 0.7 %%")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--transports", nargs="*", default=list(TRANSPORTS))
    arguments = parser.parse_args()
    peer = arguments.transports[0]
    for workers in arguments.workers:
        rows = measure(arguments, workers)
        table = Table(
            "", *(f"{what}, {unit}" for what in ("delta", "dense") for unit in ("ms", "CPU ms", f"of {peer}"))
        )
        for name in arguments.transports:
            cells: list[Any] = [name]
            for dense in (False, True):
                mine, others = rows[name, dense], rows[peer, dense]
                cells += [f"{1e3 * statistics.median(values):.1f}" for values in zip(*mine, strict=True)]
                ratio = statistics.median(a[0] / b[0] for a, b in zip(mine, others, strict=True))
                cells.append(f"{ratio:.2f}")
            table.add_row(*cells)
        Console().print(f"{arguments.elements / 1e6:.0f}M bf16 elements, {workers} workers on this host", table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
