"""Column shards of a tensor-parallel node: units cut along the shards, or one stream to a relay that cuts them there.

    .venv/bin/python benchmarks/sync/column_shards.py [--rows 8192] [--columns 4096] [--rate 0.55e-6]

Levels above 0 need old values in the order of the codec. With `shards` the sender encodes what each worker holds on its
own and the worker decodes that, as slipstream does. With `relay` the sender encodes the matrix once, a process of the
node decodes it against a host copy of the whole matrix, and hands each worker its part at level 0. CPU time on one
core, interleaved; a worker's is that of the slowest, and what the relay sends on costs no time here (shared memory).
Gathering old values of a shard is part of it where an end has to; writing the changes is not, as it is the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from synthetic_updates import warm_update
from timing import interleaved

from slipstream.core.weights.wire import Encoders, Identity, Packed, UnitTable, pack_frame, unpack_frame
from slipstream.triton_kernels import Box, restrict

IDENTITY = Identity(1, 1, 2)


class Old(NamedTuple):
    """`OldValues` over an array."""

    values: NDArray[Any]
    dtype: str = "bfloat16"

    copies = False

    @property
    def numel(self) -> int:
        return int(self.values.size)

    def all(self) -> NDArray[Any]:
        return self.values

    def at(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        return self.values[positions]


class Matrix:
    """A matrix before and after an update, and the columns of each worker."""

    def __init__(self, rows: int, columns: int, rate: float, workers: int) -> None:
        self.old, self.positions, self.values = warm_update(rows * columns, rate)
        self.rows, self.width = rows, columns // workers
        self.boxes = [
            Box(worker * self.width, 0, (rows, self.width), (columns, 1), (self.width, 1)) for worker in range(workers)
        ]
        self.held = [self.cut(self.old, worker) for worker in range(workers)]

    def cut(self, array: NDArray[Any], worker: int) -> NDArray[Any]:
        """The shard of a worker, copied."""
        first = worker * self.width
        return array.reshape(self.rows, -1)[:, first : first + self.width].reshape(-1)


def encoded(encoders: Encoders, old: NDArray[Any], positions: NDArray[Any], values: NDArray[Any]) -> bytes:
    """A frame of one section."""
    frame = pack_frame(IDENTITY, 0, [encoders.section(0, Old(old), positions, values)])
    encoders.finish()
    return frame


def decoded(frame: bytes, old: NDArray[Any]) -> Packed:
    """Its changes, packed as a worker writes them."""
    table = UnitTable((old.size,), (old.itemsize,))
    (section,) = unpack_frame(frame, IDENTITY, 0, table, lambda _: Old(old))
    assert isinstance(section, Packed)
    return section


def cut_changes(matrix: Matrix, positions: NDArray[Any], values: NDArray[Any], worker: int) -> tuple[Any, Any]:
    """Positions in a worker's shard, and their values."""
    taken, places = restrict(positions, matrix.boxes[worker])
    return places, values[taken]


def measure(matrix: Matrix, level: int, rounds: int) -> list[tuple[str, int, float, float, float]]:
    """(way, bytes on the link, seconds of the sender, of the relay, of the slowest worker) of both ways."""
    workers = range(len(matrix.boxes))
    own, whole, local = [Encoders(level) for _ in workers], Encoders(level), Encoders(0)

    def send_shards() -> list[bytes]:
        parts = [cut_changes(matrix, matrix.positions, matrix.values, worker) for worker in workers]
        return [encoded(own[worker], matrix.cut(matrix.old, worker), *parts[worker]) for worker in workers]

    def send_whole() -> bytes:
        return encoded(whole, matrix.old, matrix.positions, matrix.values)

    for _ in range(2):  # class maps are fitted in the first sync
        shards, stream = send_shards(), send_whole()

    def relayed() -> list[bytes]:
        section = decoded(stream, matrix.old)
        parts = [cut_changes(matrix, section.positions, section.values, worker) for worker in workers]
        return [encoded(local, matrix.held[worker], *parts[worker]) for worker in workers]

    forwarded = relayed()
    for worker in workers:
        by_shard, by_relay = (decoded(frames[worker], matrix.held[worker]) for frames in (shards, forwarded))
        assert np.array_equal(by_shard.positions, by_relay.positions)
        assert np.array_equal(by_shard.values, by_relay.values)
    tasks = [send_shards, send_whole, relayed]
    for frames in (shards, forwarded):
        tasks += [lambda f=f, w=w: decoded(f, matrix.held[w]) for w, f in enumerate(frames)]  # type: ignore[misc]
    seconds = interleaved(rounds, *tasks)
    ends = seconds[3 : 3 + len(workers)], seconds[3 + len(workers) :]
    return [
        ("shards", sum(map(len, shards)), seconds[0], 0.0, max(ends[0])),
        ("relay", len(stream), seconds[1], seconds[2], max(ends[1])),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--rate", type=float, default=0.55e-6, help="learning rate; 0.55e-6 changes 0.7 %%")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    table = Table("workers", "level", "way", "kB on the link", "ms sender", "ms relay", "ms worker", "ms in all")
    for workers in (2, 8):
        matrix = Matrix(chosen.rows, chosen.columns, chosen.rate, workers)
        for level in (1, 2):
            for way, size, *seconds in measure(matrix, level, chosen.rounds):
                row = [f"{1e3 * value:.1f}" for value in (*seconds, sum(seconds))]
                table.add_row(str(workers), str(level), way, f"{size / 1e3:.0f}", *row)
    changed = matrix.positions.size / matrix.old.size
    Console().print(f"{chosen.rows} x {chosen.columns} bf16, {100 * changed:.2f} % changed, one core", table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
