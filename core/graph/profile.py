"""Measures on this machine what the schedulers assume of others: time per unit of work, and mutual slowdown.

The work is a stand-in for a model: a stack of matrices that decode streams for few rows, prefill and log-prob for many,
and that training also differentiates. Two processes run what shares a worker, as engines and trainers do.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from slipstream.core.graph.compiled.model import DECODE_EDGES, GANG, KINDS, LOGPROB, SYNC, TRAIN, Floats
from slipstream.core.graph.errors import GraphError
from slipstream.core.graph.interference import LOADS
from slipstream.core.graph.workload import DecodeCost, Workload

BATCHES: Final = (1, 4, 16, 64, 256)
"""Rows of a decode iteration."""
SHARES: Final = (1.0, 0.5)
GANG_ROWS: Final = {"prefill": 256, "log-prob": 256, "train": 128}
_SHAPES: Final = {"cpu": (512, 6), "cuda": (4096, 16)}
"""Width, layers; the inner width is four times the width. More than the caches hold."""
_WARM_UP: Final = 2


class Measured(msgspec.Struct, frozen=True):
    """One kind of work, alone."""

    work: str
    """decode, prefill, log-prob, train or sync."""
    rows: int
    share: float
    """Of the cores, or of the GPU's threads."""
    seconds: float
    """An iteration, median."""


class Pair(msgspec.Struct, frozen=True):
    """Extra time a second of `work` takes beside another: 0.3 means 1.3 times as long."""

    work: str
    rows: int
    beside: str
    beside_rows: int
    extra: float


class Profile(msgspec.Struct, frozen=True):
    """What was measured on one machine."""

    machine: str
    device: str
    alone: tuple[Measured, ...]
    pairs: tuple[Pair, ...]
    decode: DecodeCost
    """Fitted to the iterations with the whole machine; of this profile's stand-in, not of anybody's model."""

    def load(self, rows: int) -> float:
        """Return u of a decode iteration with so many rows."""
        added = self.decode.per_request * rows
        return added / (self.decode.iteration + added)

    def slowdowns(self) -> Floats:
        """Return float64[KINDS, KINDS] for `Interference.measured`: a decode class has the measurement whose load is
        nearest, what was not measured is not-a-number."""
        table = np.full((KINDS, KINDS), np.nan)
        gangs = {"log-prob": GANG + LOGPROB, "train": GANG + TRAIN, "sync": GANG + SYNC}
        for pair in self.pairs:
            if "decode" not in (pair.work, pair.beside) and pair.work in gangs and pair.beside in gangs:
                table[gangs[pair.work], gangs[pair.beside]] = pair.extra
        for compute, kind in gangs.items():
            for decodes in (True, False):
                found = [
                    (pair.rows if decodes else pair.beside_rows, pair.extra)
                    for pair in self.pairs
                    if (pair.work, pair.beside) == (("decode", compute) if decodes else (compute, "decode"))
                ]
                for place in range(len(DECODE_EDGES) + 1) if found else ():
                    extra = min(found, key=lambda each: abs(self.load(each[0]) - LOADS[place]))[1]
                    table[(place, kind) if decodes else (kind, place)] = extra
        return table

    def applied(self, workload: Workload) -> Workload:
        """Return the workload with the measured slowdowns; the assumed ones stay where nothing was measured."""
        table = tuple(tuple(None if np.isnan(each) else each for each in row) for row in self.slowdowns().tolist())
        return msgspec.structs.replace(workload, slowdowns=table)


def read_profile(file: Path) -> Profile:
    """Read what ``slipstream profile --out`` wrote.

    Raises:
        GraphError: it is not a profile.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=Profile)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise GraphError(f"{file}: expected a profile: {error}; `slipstream profile --out FILE` writes one") from error


def fit_decode(alone: Sequence[Measured]) -> DecodeCost:
    """Fit iteration + per_request * rows to the decode iterations with the whole machine, relative errors counting."""
    whole = [each for each in alone if each.share == 1.0]
    points = [(each.rows, each.seconds) for each in whole if each.work == "decode"]
    rows, seconds = (np.array(each, dtype=np.float64) for each in zip(*points, strict=True))
    weights = 1.0 / seconds
    design = np.stack([weights, rows * weights], axis=1)
    # tried: both terms, the first alone, the second alone; a negative cost has no meaning
    both = np.linalg.lstsq(design, np.ones_like(rows), rcond=None)[0]
    iteration, per_request = both if min(both) >= 0.0 else (float(np.median(seconds)), 0.0)
    prefill = [each.seconds / each.rows for each in whole if each.work == "prefill"]
    return DecodeCost(float(iteration), float(per_request), float(np.median(prefill)) if prefill else 0.0)


def measure(seconds: float = 0.5, width: int | None = None, tell: Callable[[str], None] = lambda text: None) -> Profile:
    """Measure everything; takes about `seconds` times 40 and half a minute to start.

    Args:
        seconds: of each measurement.
        width: of the stand-in model; None for one that no cache holds.
        tell: is told what is measured next.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    shares = SHARES if device == "cpu" or _mps_runs() else SHARES[:1]
    alone: list[Measured] = []
    pairs: list[Pair] = []
    for share in shares:
        with _Workers(device, share, 1, width) as workers:
            for work, rows in [*(("decode", rows) for rows in BATCHES), *GANG_ROWS.items(), ("sync", 0)]:
                tell(f"{work} of {rows} rows, share {share:g}")
                alone.append(Measured(work, rows, share, workers.run([(work, rows)], seconds)[0]))
    by_work = {(each.work, each.rows): each.seconds for each in alone if each.share == 1.0}
    with _Workers(device, 1.0, 2, width) as workers:
        decodes = [("decode", rows) for rows in BATCHES[::2]]
        gangs = [("log-prob", GANG_ROWS["log-prob"]), ("train", GANG_ROWS["train"]), ("sync", 0)]
        for first in gangs:
            for second in [*decodes, *(gangs if first[0] == "train" else [])]:
                tell(f"{first[0]} beside {second[0]} of {second[1]} rows")
                both = workers.run([first, second], seconds)
                for (work, rows), (other, other_rows), took in zip((first, second), (second, first), both, strict=True):
                    pairs.append(Pair(work, rows, other, other_rows, max(0.0, took / by_work[work, rows] - 1.0)))
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "CPU"
    return Profile(machine, name, tuple(alone), tuple(pairs), fit_decode(alone))


def _mps_runs() -> bool:
    return os.path.exists(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))


class _Workers:
    """Processes that each run a kind of work, all at the same time."""

    def __init__(self, device: str, share: float, count: int, width: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._barrier = context.Barrier(count)
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        before = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        if share < 1.0 and device == "cuda":  # MPS reads it when a process starts
            os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(round(100 * share))
        try:
            for _ in range(count):
                here, there = context.Pipe()
                arguments = (there, self._barrier, device, share, width)
                process = context.Process(target=_serve, args=arguments, daemon=True)
                process.start()
                self._pipes.append(here)
                self._processes.append(process)
        finally:
            if before is None:
                os.environ.pop("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", None)
            else:
                os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = before

    def run(self, works: Sequence[tuple[str, int]], seconds: float) -> list[float]:
        """Return the median seconds of an iteration of each."""
        for pipe, work in zip(self._pipes, works, strict=True):
            pipe.send((*work, seconds))
        return [float(pipe.recv()) for pipe in self._pipes]

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.terminate()
            process.join()


def _serve(pipe: Any, barrier: Any, device: str, share: float, wide: int | None) -> None:
    import time

    import torch

    if device == "cpu":
        torch.set_num_threads(max(1, round(share * (os.cpu_count() or 1))))
    width, layers = _SHAPES[device]
    width = wide or width
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    weights = [
        torch.randn(shape, device=device, dtype=dtype).mul_(0.02).requires_grad_()
        for _ in range(layers)
        for shape in ((width, 4 * width), (4 * width, width))
    ]
    copy = [torch.empty_like(each) for each in weights]

    def forward(rows: int) -> torch.Tensor:
        x = torch.ones(rows, width, device=device, dtype=dtype)
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            x = x + torch.relu(x @ up) @ down
        return x

    def once(work: str, rows: int) -> None:
        if work == "train":
            forward(rows).float().square().mean().backward()  # type: ignore[no-untyped-call]
            for each in weights:
                each.grad = None
        else:
            with torch.no_grad():
                if work == "sync":
                    for target, source in zip(copy, weights, strict=True):
                        target.copy_(source)
                else:
                    forward(rows)
        if device == "cuda":
            torch.cuda.synchronize()

    while True:
        work, rows, seconds = pipe.recv()
        for _ in range(_WARM_UP):
            once(work, rows)
        barrier.wait()
        took: list[float] = []
        end = time.monotonic() + seconds
        # at least some iterations; and nobody stops early, or the other would have the machine for itself
        while time.monotonic() < end or len(took) < _WARM_UP:
            began = time.monotonic()
            once(work, rows)
            took.append(time.monotonic() - began)
        pipe.send(float(np.median(took)))
        barrier.wait()
