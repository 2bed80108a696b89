"""The Triton twins on a GPU: right bit for bit, and how fast.

    .venv/bin/python benchmarks/gpu/run.py [--quick]
    TRITON_INTERPRET=1 .venv/bin/python benchmarks/gpu/run.py --check-only --quick --elements 4000      # without a GPU

Each kernel by itself, then all of a sync that happens on a device: stage (cast, compare, encode, fingerprint, sections
on the host) and apply (frames from the host, decode, write, fingerprint, and the undo).

Every result is compared with its reference before it is timed (from 2**18 elements on, and for stage and apply always,
with the numba twins, which tests hold to it). Each operation is timed in turn with torch's own way to the same result,
where there is one (for stage and apply that of formats of 48 bits a change), and with a copy of 256 MB; between two
measurements the cache is flushed. Best of the rounds, by GPU events, host work included. "of copy" is the operation's
rate, counting every input and output once, over the rate of the copy in the same rounds.

Prints a table and writes benchmarks/results/gpu.json. Exits 1 when a bar is missed or a bit is wrong, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:  # both need triton, which a machine without a GPU may not have
    from operations import Operation

MEGA = 1 << 20
SIZES = (8 * MEGA, 64 * MEGA, 512 * MEGA)
COPIED = 256 * MEGA
DENSE = ("extract", "fused cast", "fingerprint")
"""Operations that read everything once, and must reach the bar in the largest size at 0.6 %."""
BAR = 0.7
RESULT = Path(__file__).parents[1] / "results" / "gpu.json"


class Clock:
    """Times work on the current GPU, in turn, with a cold cache."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.source, self.target = (torch.zeros(COPIED, dtype=torch.uint8, device="cuda") for _ in range(2))

    def once(self, work: Callable[[], Any]) -> float:
        """Seconds of one call, with a cold cache."""
        self.target.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def interleaved(self, *tasks: Callable[[], Any]) -> list[float]:
        """Least seconds of each task."""
        for task in tasks:
            task()
        rounds = [[self.once(task) for task in tasks] for _ in range(self.rounds)]
        return [min(column) for column in zip(*rounds, strict=True)]


def measure(operation: Operation, clock: Clock) -> dict[str, Any]:
    """Time one operation beside torch's way and a copy."""
    tasks = [operation.ours, lambda: clock.target.copy_(clock.source)]
    seconds = clock.interleaved(*tasks, *([operation.torch] if operation.torch else []))
    copy_rate = 2 * COPIED / seconds[1]
    return {
        "milliseconds": 1e3 * seconds[0],
        "gigabytes_a_second": operation.moved / seconds[0] / 1e9,
        "of_copy": operation.moved / seconds[0] / copy_rate,
        "copy_gigabytes_a_second": copy_rate / 1e9,
        "torch_milliseconds": 1e3 * seconds[2] if operation.torch else None,
    }


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    torch_time = row.get("torch_milliseconds")
    return f"{row['operation']:16} {row['elements']:12,} {100 * row['density']:7.2f} " + (
        f"{row['milliseconds']:10.3f} {row['gigabytes_a_second']:8.0f} {row['of_copy']:8.2f} "
        + (f"{torch_time:10.3f} {torch_time / row['milliseconds']:7.1f}" if torch_time else f"{'-':>10} {'-':>7}")
        if "milliseconds" in row
        else "right"
    )


def bars(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What must hold: the dense operations near the copy, at 0.6 % in the largest size."""
    largest = max(row["elements"] for row in rows)
    return [
        {
            "name": f"{row['operation']} over copy bandwidth, {largest:,} elements",
            "value": row["of_copy"],
            "unit": "of copy",
            "bar": BAR,
            "peer": row["torch_milliseconds"],
            "ok": row["of_copy"] >= BAR,
        }
        for row in rows
        if row["operation"] in DENSE and row["elements"] == largest and row["target_density"] == 0.006
    ]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, the middle size, densities of 0.6 and 5 %%")
    parser.add_argument("--elements", type=int, help="one size instead of 8M, 64M and 512M")
    parser.add_argument("--check-only", action="store_true", help="compare, do not time; also in Triton's interpreter")
    options = parser.parse_args(arguments)
    if options.elements is not None and options.elements < 1:
        parser.error("expected at least one element")
    return options


def main() -> int:
    """Check, time, print, write."""
    options = parse()
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not torch.cuda.is_available() and not (options.check_only and interpreted):
        print("no GPU here: nothing was measured; TRITON_INTERPRET=1 with --check-only compares results without one")
        return 2
    from operations import operations
    from stages import stages
    from updates import RATES, draw

    from slipstream.triton_kernels.placement import interpreting

    device = "cpu" if interpreted else "cuda"
    clock = None if options.check_only else Clock(5 if options.quick else 20)
    sizes = (options.elements,) if options.elements else SIZES[1:2] if options.quick else SIZES
    densities = tuple(RATES)[1::2] if options.quick else tuple(RATES)
    machine = platform.processor() or platform.machine() if interpreted else torch.cuda.get_device_name()
    versions = {name: importlib.metadata.version(name) for name in ("torch", "triton")}
    versions |= {"python": platform.python_version()}
    print(f"{machine}, {', '.join(f'{name} {version}' for name, version in versions.items())}")
    print("operation            elements  changed%         ms     GB/s  of copy   torch ms  faster")
    rows = []
    with interpreting() if interpreted else nullcontext():
        for n, density in product(sizes, densities):
            update = draw(n, density, device)
            for operation in chain(operations(update), stages(update)):
                operation.check()
                row = {
                    "operation": operation.name,
                    "elements": n,
                    "density": update.density,
                    "target_density": density,
                    **(measure(operation, clock) if clock else {}),
                }
                rows.append(row)
                print(line(row), flush=True)
    if options.check_only:
        return 0
    found = bars(rows)
    for bar in found:
        print(f"{'ok' if bar['ok'] else 'MISSED'}: {bar['name']}: {bar['value']:.2f}, bar {bar['bar']}")
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"machine": machine, "versions": versions, "rows": rows, "bars": found}, indent=1))
    return 0 if all(bar["ok"] for bar in found) else 1


if __name__ == "__main__":
    sys.exit(main())
