"""Reads recorded rollouts and inference traces as token counts, and stands in for them when there are none."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MARKUP_TOKENS = 4
"""Chat markup around a message."""


class Attempt(NamedTuple):
    """A recorded attempt: prompt tokens before each assistant message, and the message's tokens."""

    system_tokens: int
    inputs: tuple[int, ...]
    """Without the system message; user and tool messages before each assistant message."""

    outputs: tuple[int, ...]


class TraceRequest(NamedTuple):
    """A request of an inference trace."""

    seconds: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """Ids of 512-token prefix blocks; empty where the trace has none."""


Tasks = list[list[Attempt]]
"""Attempts by task."""


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a zstandard file.

    :raises ModuleNotFoundError: without pyarrow, which brings the decompressor.
    """
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"reading {path.name} needs pyarrow: pip install slipstream-rl[replay]") from error
    with pyarrow.OSFile(str(path)) as raw, pyarrow.CompressedInputStream(raw, "zstd") as stream:
        yield from stream.read().splitlines()


def read_rollouts(path: Path) -> Tasks:
    """Read ``rollouts/*.jsonl.zst``: one attempt a line, see the data set's own README."""
    tasks: dict[str, list[Attempt]] = defaultdict(list)
    for line in read_lines(path):
        row = json.loads(line)
        attempt = _attempt(row["segments"], (row.get("meta") or {}).get("full_tokens"))
        if attempt.outputs:
            tasks[row["task"]].append(attempt)
    return list(tasks.values())


def _attempt(segments: Sequence[dict[str, Any]], full_tokens: int | None) -> Attempt:
    system, pending = 0, 0
    inputs: list[int] = []
    outputs: list[int] = []
    for segment in segments:
        tokens = len(segment["ids"]) + MARKUP_TOKENS
        if segment["role"] == "system" and not inputs and not pending:
            system += tokens
        elif segment["role"] == "assistant":
            inputs.append(pending)
            outputs.append(tokens)
            pending = 0
        else:
            pending += tokens
    if full_tokens is not None and outputs:
        outputs[-1] = full_tokens
    return Attempt(system, tuple(inputs), tuple(outputs))


def read_trace(path: Path) -> list[TraceRequest]:
    """Read a Mooncake (``.jsonl.zst``) or Azure (``.csv.zst``) trace.

    :raises ValueError: when it is neither.
    """
    lines = list(read_lines(path))
    if not lines:
        raise ValueError(f"{path} is empty; expected a Mooncake or Azure trace")
    if lines[0].startswith(b"{"):
        rows = map(json.loads, lines)
        return [
            TraceRequest(r["timestamp"] / 1e3, r["input_length"], r["output_length"], tuple(r["hash_ids"]))
            for r in rows
        ]
    table = csv.DictReader(io.StringIO(b"\n".join(lines).decode()))
    if table.fieldnames is None or not {"t_ms", "ctx", "gen"} <= set(table.fieldnames):
        raise ValueError(f"{path}: expected columns t_ms, ctx, gen; found {table.fieldnames}")
    return [TraceRequest(float(r["t_ms"]) / 1e3, int(r["ctx"]), int(r["gen"]), ()) for r in table]


def generated_tasks(name: str, seed: int = 1) -> Tasks:
    """Return stand-ins of the size of the recorded sets, for machines without them."""
    chance = random.Random(f"{name}-{seed}")
    count, attempts, system, first, turns, later, output = _STAND_INS[name]

    def around(mean: float, sigma: float) -> int:
        return max(1, round(mean * math.exp(chance.gauss(0, sigma) - sigma * sigma / 2)))

    tasks = []
    for _ in range(count):
        length, size = around(turns, 0.4), around(output, 0.4)
        opening = around(first, 0.3)
        tasks.append(
            [
                Attempt(
                    system,
                    (opening, *(around(later, 1.0) for _ in range(length - 1))),
                    tuple(around(size, 0.5) for _ in range(length)),
                )
                for _ in range(attempts)
            ]
        )
    return tasks


# tasks, attempts, system tokens, first input, turns, later input, output a turn
_STAND_INS = {
    "tau_airline": (23, 4, 1269, 50, 12, 110, 75),
    "tau_retail_variants": (53, 4, 1208, 30, 12, 150, 75),
    "mint_alfworld_mixtral": (65, 5, 0, 1450, 4, 80, 180),
    "sweagent_demos": (5, 1, 1500, 700, 14, 250, 90),
    "math100x8_qwen25math": (53, 8, 19, 90, 1, 1, 520),
    "longreason25_step1300": (13, 1, 0, 60, 1, 1, 17000),
}
