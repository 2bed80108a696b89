"""Weight sync beside its peers: bytes, CPU speed, and what a sync costs the worker.

    make bench-sync [ARGS="--quick --data DIR"]

Prints tables, writes benchmarks/results/sync.json, and exits with status 1 when a bar is missed. One thread works; each
speed is a ratio of CPU times that were measured in turn. Every stream is decoded and compared bit for bit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import receiving
import sizes
import speeds
import torch
import trained_updates
from bars import Report, print_rows
from rich.console import Console
from sizes import Series

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "sync.json"
DISTRIBUTIONS = ("torch", "numpy", "numba", "verl", "pyarrow", "transformers")


def recorded(folder: Path, report: Report) -> Iterator[Series]:
    """Pairs of checkpoints: DIR/updates/<name>/before.safetensors and after.safetensors."""
    from safetensors.torch import load_file

    found = sorted(folder.glob("updates/*/after.safetensors"))
    if not found:
        report.remarks.append("no recorded updates (--data): all updates are generated here")
    for after in found:
        pair = [load_file(after.with_name(f"{which}.safetensors")) for which in ("before", "after")]
        pair = [{k: v for k, v in w.items() if v.dtype == torch.bfloat16} for w in pair]
        yield Series(f"recorded {after.parent.name}", pair, trained=True)


def trained(quick: bool, report: Report) -> Iterator[Series]:
    """Deltas of models trained here, one and four optimizer steps between syncs; never the first step of a run."""
    runs = [("demo model", rate, warm, 16) for rate in ((3e-6,) if quick else (1e-6, 3e-6)) for warm in (False, True)]
    if quick:
        report.remarks.append("SmolLM2-135M only without --quick: a step takes seconds")
    else:
        runs += [("SmolLM2-135M", 3e-6, warm, 16) for warm in (False, True)]
    for model, rate, warm, steps in runs:
        versions: list[trained_updates.Weights] = []
        try:
            for step, weights in enumerate(trained_updates.MODELS[model](rate, steps, warm)):
                versions.append(weights if step % 4 == 0 or step >= steps - 4 else {})
        except FileNotFoundError as error:
            report.remarks.append(f"{model} left out: {error}")
            continue
        start = f"{model} {'warm' if warm else 'cold'} {rate:g}"
        yield Series(f"{start} K=1", versions[-5:], trained=True)
        yield Series(f"{start} K=4", versions[::4], trained=True)


def main() -> int:
    """Run everything and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller arrays, fewer rounds")
    parser.add_argument("--only-sizes", action="store_true", help="no times: seconds, and the same on every machine")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="recorded updates")
    arguments = parser.parse_args()
    quick = arguments.quick
    torch.set_num_threads(1)
    console, report = Console(), Report()
    million = 1 << 20

    def add(title: str, rows: list[dict[str, object]]) -> None:
        report.rows += rows
        print_rows(console, title, rows)

    with console.status("sizes"):
        for source in (
            sizes.synthetic((8 if quick else 32) * million),
            trained(quick, report),
            recorded(arguments.data, report),
        ):
            for series in source:
                found = sizes.measure(series)
                add(series.name, list(sizes.rows(series, found)))
                report.bars += sizes.bars(series, found)
        if arguments.only_sizes:
            return finish(report, console, RESULT.with_name("sync_sizes.json"))
        worst = [
            {"kind": "worst case", "update": case, "level": level, "B/tensor over 1.0001 x dense": excess}
            for case, level, excess in sizes.worst(million)
        ]
    add("worst case", worst)
    report.bars += sizes.worst_bars(worst)

    with console.status("CPU speed"):
        rounds = 5 if quick else 9
        extraction = list(speeds.extraction((16 if quick else 24) * million, rounds))
        codec = list(speeds.codec((16 if quick else 32) * million, rounds))
    add("extraction, times of the two-stream read", extraction)
    report.bars += speeds.extraction_bars(extraction)
    add("class codec", codec)
    report.bars += speeds.codec_bars(codec)

    with console.status("the worker"):
        models = (2, 8, 16, 32) if quick else (4, 16, 48, 128)
        densities = (0.001, 0.006, 0.012, 0.05)
        times = [row for m in models for row in receiving.times(m * million, densities, 3 if quick else 7)]
        memory = list(receiving.memory((64 if quick else 128) * million, 0.1))
        many = list(receiving.many_tensors((2048, 6144, 18432), 3 if quick else 5))
    add("a sync at the worker", times)
    report.bars += receiving.time_bars(times)
    add("memory of a sync at the worker", memory)
    report.bars += receiving.memory_bars(memory)
    add("many tiny tensors", many)
    report.bars += receiving.many_tensors_bars(many)

    return finish(report, console, RESULT)


def finish(report: Report, console: Console, result: Path) -> int:
    """Print the bars, write the result file and return the exit status."""
    report.print_bars(console)
    report.write(result, DISTRIBUTIONS)
    console.print(f"{len(report.bars) - report.missed} of {len(report.bars)} bars met; written to {result}")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
