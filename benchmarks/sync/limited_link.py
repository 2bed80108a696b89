"""Real time of a sync over a slow link: two network namespaces, `tc` at 1 Gbit/s and 50 ms round trip.

    .venv/bin/python benchmarks/sync/limited_link.py [--megabits 1000] [--rtt 50] [--elements 200e6] [--rate 0.55e-6]

Needs root, `ip` and `tc`. A trainer process in one namespace publishes to an engine process in the other over ZeroMQ.
`tc` (token bucket) limits the rate of both ends; a relay in front of the engine holds every byte back for half the
round trip in each direction, since few kernels come with netem. Updates are those of `synthetic_updates`: float32
masters N(0, 0.02), moved by N(0, 1) * 0.3 * rate. Each row is the median of the syncs after the seed, all rows have the
same updates, and each ends with both sides bit for bit equal. The peer is the same path with every element sent
(`dense`), which is what frameworks do over such a link today.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from slipstream.core.weights import TensorEngine

TRAINER, ENGINE = "slipstream-trainer", "slipstream-engine"
ADDRESS, PORT, RELAY_PORT = "10.213.7.1", 47011, 47012
TENSORS = 8
SYNCS = 4


def flat_engine(shapes: dict[str, tuple[int, ...]]) -> TensorEngine:
    """An engine that holds each checkpoint tensor as it is, in bf16."""
    return TensorEngine({name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()})


class Masters:
    """float32 masters of a model in training, with their bf16 copies."""

    def __init__(self, elements: int, rate: float) -> None:
        generator = torch.Generator().manual_seed(0)
        rows = elements // TENSORS // 1024
        self._rate = rate
        self._masters = [0.02 * torch.randn(rows, 1024, generator=generator) for _ in range(TENSORS)]
        self.copies = {str(i): master.to(torch.bfloat16) for i, master in enumerate(self._masters)}

    def step(self, seed: int) -> None:
        """One update."""
        generator = torch.Generator().manual_seed(seed)
        for i, master in enumerate(self._masters):
            master += 0.3 * self._rate * torch.randn(master.shape, generator=generator)
            self.copies[str(i)] = master.to(torch.bfloat16)


def engine_process(elements: int, syncs: int) -> None:
    from slipstream.core.weights import Connections, Subscriber

    engine = flat_engine({str(i): (elements // TENSORS // 1024, 1024) for i in range(TENSORS)})
    subscriber = Subscriber(engine, "engine")
    connections = Connections()
    for _ in range(syncs):
        with connections.joined([f"tcp://127.0.0.1:{RELAY_PORT}"], 600) as channels:
            subscriber.sync(channels, 600)
    print(json.dumps(engine.checksums()))


def trainer_process(elements: int, rate: float, level: str) -> None:
    from slipstream.core.weights import Publisher, PublisherSettings, ZmqPublisherChannel

    fixed = None if level in ("auto", "dense") else int(level)
    publisher = Publisher(PublisherSettings(timeout=600, level=fixed, dense=level == "dense"))
    masters = Masters(elements, rate)
    channel = ZmqPublisherChannel(f"tcp://{ADDRESS}:{PORT}", 600)
    rows = []
    for number in range(SYNCS + 1):
        if number:
            masters.step(number)
        start = time.perf_counter()
        report = publisher.sync(masters.copies.items(), channel, 1)
        rows.append({"seconds": time.perf_counter() - start, "bytes": report.payload_bytes, "level": report.level})
        changed = report.changed_elements / report.total_elements
    engine = flat_engine({})
    engine.tensors = masters.copies
    print(json.dumps({"syncs": rows[1:], "changed": changed, "checksums": engine.checksums()}))


async def relay(delay: float) -> None:
    """Pass connections to `RELAY_PORT` on to the trainer, every byte `delay` seconds later in either direction."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()

        task = asyncio.create_task(deliver())
        data = b"-"
        while data:
            try:
                data = await reader.read(1 << 18)
            except ConnectionError:
                data = b""
            queue.put_nowait((loop.time() + delay, data))
        await asyncio.gather(task, return_exceptions=True)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                far_reader, far_writer = await asyncio.open_connection(ADDRESS, PORT)
                break
            except OSError:
                await asyncio.sleep(0.01)  # the trainer is not there yet
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(connected, "127.0.0.1", RELAY_PORT)
    await server.serve_forever()


def shell(command: str) -> None:
    subprocess.run(command.split(), check=True)


def build_link(megabits: int) -> None:
    """Two namespaces joined by a pair of virtual devices, both limited."""
    for name in (TRAINER, ENGINE):
        shell(f"ip netns add {name}")
    shell(f"ip link add slip0 netns {TRAINER} type veth peer name slip1 netns {ENGINE}")
    for name, device, address in ((TRAINER, "slip0", ADDRESS), (ENGINE, "slip1", "10.213.7.2")):
        inside = f"ip netns exec {name}"
        shell(f"{inside} ip addr add {address}/24 dev {device}")
        shell(f"{inside} ip link set {device} up")
        shell(f"{inside} ip link set lo up")
        shell(f"{inside} tc qdisc add dev {device} root tbf rate {megabits}mbit burst 256kb latency 200ms")


def remove_link() -> None:
    for name in (TRAINER, ENGINE):
        subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def measure(arguments: argparse.Namespace, level: str) -> dict[str, float]:
    """Run both processes once; return the medians.

    Raises:
        RuntimeError: one of them failed, or they hold different bits at the end.
    """
    common = [sys.executable, str(Path(__file__).resolve()), "--elements", str(arguments.elements)]
    common += ["--rate", str(arguments.rate), "--level", level]
    helper = subprocess.Popen(["ip", "netns", "exec", ENGINE, *common, "--role", "relay", "--rtt", str(arguments.rtt)])
    processes = [
        subprocess.Popen(["ip", "netns", "exec", name, *common, "--role", role], stdout=subprocess.PIPE, text=True)
        for name, role in ((TRAINER, "trainer"), (ENGINE, "engine"))
    ]
    outputs = [process.communicate(timeout=1200)[0] for process in processes]
    helper.terminate()
    helper.wait()
    if any(process.returncode for process in processes):
        raise RuntimeError(f"level {level}: a process failed")
    told, held = (json.loads(output.splitlines()[-1]) for output in outputs)
    if told["checksums"] != held:
        raise RuntimeError(f"level {level}: trainer and engine hold different bits")
    median = {key: statistics.median(row[key] for row in told["syncs"]) for key in ("seconds", "bytes")}
    return {**median, "level": told["syncs"][-1]["level"], "changed": told["changed"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabits", type=int, default=1000)
    parser.add_argument("--rtt", type=float, default=50.0, help="milliseconds")
    parser.add_argument("--elements", type=lambda text: int(float(text)), default=200_000_000)
    parser.add_argument("--rate", type=float, default=0.55e-6, help="learning rate; 0.55e-6 changes 0.7 %%")
    parser.add_argument("--levels", nargs="*", default=["dense", "0", "1", "2", "auto"])
    parser.add_argument("--role", choices=["trainer", "engine", "relay"], help=argparse.SUPPRESS)
    parser.add_argument("--level", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role == "trainer":
        trainer_process(arguments.elements, arguments.rate, arguments.level)
        return 0
    if arguments.role == "engine":
        engine_process(arguments.elements, SYNCS + 1)
        return 0
    if arguments.role == "relay":
        asyncio.run(relay(arguments.rtt / 2000))
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        print("this benchmark needs root, ip and tc (iproute2)", file=sys.stderr)
        return 2
    remove_link()
    table = Table("", "bytes a sync", "seconds a sync", "times faster than dense")
    dense = 0.0
    try:
        build_link(arguments.megabits)
        for level in arguments.levels:
            row = measure(arguments, level)
            dense = row["seconds"] if level == "dense" else dense
            name = level if level == "dense" else f"level {level}" + (f" ({row['level']})" if level == "auto" else "")
            faster = f"{dense / row['seconds']:.1f}" if dense else ""
            table.add_row(name, f"{row['bytes'] / 1e6:.2f} MB", f"{row['seconds']:.2f}", faster)
    finally:
        remove_link()
    what = f"{arguments.elements / 1e6:.0f}M bf16 elements, {100 * row['changed']:.2f} % changed"
    Console().print(f"{what}, {arguments.megabits} Mbit/s, {arguments.rtt:g} ms round trip", table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
