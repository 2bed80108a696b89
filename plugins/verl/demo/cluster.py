"""A local Ray cluster on this CPU that several training runs join, with two or more slots a pretended GPU."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slipstream.plugins.verl.demo.command import OBJECT_STORE_BYTES, cpus_of, training_environment
from slipstream.plugins.verl.demo.runner import MARK, stop_run

__all__ = ["Cluster", "local_cluster"]

_START_SECONDS = 60.0


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs can join."""

    address: str
    env: dict[str, str]
    """Variables that whoever joins must have: the cluster takes nobody who does not know its token."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def local_cluster(
    folder: Path, *, gpus: int = 1, slots: int = 2, threads: int = 1, env: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Run a cluster for as long as the context is open.

    Args:
        folder: where its log goes.
        gpus: pretended ones.
        slots: how often Ray may give away each of them, to as many runs.
        threads: a compute process, as for `training_environment`.
        env: further variables of every process in it.

    Raises:
        RuntimeError: it did not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix="slip-ray-"))
    # Ray translates its indices through this list, so slot i and slot i + gpus are one device.
    devices = ",".join(str(index) for _ in range(slots) for index in range(gpus))
    mark, joining = uuid.uuid4().hex, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
    environment = {**os.environ, **training_environment(folder, gpus, threads), **joining, **(env or {}), MARK: mark}
    environment["CUDA_VISIBLE_DEVICES"] = devices
    environment.pop("RAY_ADDRESS", None)
    address = f"127.0.0.1:{_free_port()}"
    log = folder / "cluster.txt"
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        *("--node-ip-address=127.0.0.1", f"--port={address.rpartition(':')[2]}", f"--temp-dir={temporary}"),
        *(f"--num-cpus={slots * cpus_of(gpus)}", f"--num-gpus={slots * gpus}", "--include-dashboard=false"),
        f"--object-store-memory={slots * OBJECT_STORE_BYTES}",
    ]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while "Ray runtime started" not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Ray did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.2)
        yield Cluster(address, joining)
    finally:
        stop_run(process, mark, 5.0)
        shutil.rmtree(temporary, ignore_errors=True)
