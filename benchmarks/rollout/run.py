"""Rollout scheduling beside its peers, by simulation: time of a step, cache hits, recomputed prefill.

    make bench-rollout [ARGS="--quick --data DIR"]

Prints tables, writes benchmarks/results/rollout.json, and exits with status 1 when a bar is missed. Every policy plays
the same trajectories; turns and generated tokens are counted and must be equal. Seeds are fixed; the router was tuned
on others (0 to 14). Times are simulated seconds, so the machine does not matter, but for the time of decisions.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import decisions
from bars import Bar, Report, print_rows
from cells import CELLS, SENSITIVITY, Cell
from rich.console import Console

from slipstream.core.rollout.simulation import shapes
from slipstream.core.rollout.simulation.bound import lower_bound
from slipstream.core.rollout.simulation.peers import PEERS
from slipstream.core.rollout.simulation.recorded import read_trace
from slipstream.core.rollout.simulation.replay import OURS, percentile, replay

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "rollout.json"
FIRST_SEED = 101
QUICK_SEEDS = 4
EXTRA = "verl+priority"
DECISION_MICROSECONDS = 50.0
BYTES_A_TRAJECTORY = 4096.0


def play(job: tuple[Cell, int, Path | None]) -> tuple[str, float, dict[str, dict[str, float]]]:
    """Play one cell with one seed; a unit of work for a process pool."""
    cell, seed, folder = job
    data = shapes.Recordings(folder)
    workload = shapes.step(lambda s: cell.make(data, cell.groups, s), cell.name, seed)
    models = [cell.model] * cell.replicas
    found = {}
    for name, outcome in replay(workload, (OURS, *PEERS, EXTRA), models, seed=seed).items():
        found[name] = {
            "seconds": outcome.seconds,
            "output tokens": outcome.output_tokens,
            "turns": outcome.turns,
            "hit %": 100 * outcome.hit_rate,
            "recomputed M": outcome.recomputed_tokens / 1e6,
            "preemptions": outcome.preemptions,
            "p99 returning s": percentile(outcome.returning_seconds, 0.99),
            "migrations": outcome.migrations,
        }
    return cell.name, lower_bound(workload, models), found


def measure(cells: list[Cell], most: int | None, folder: Path | None, report: Report, console: Console) -> None:
    """Play cells, print and keep their rows, and judge those with a bar.

    :param most: seeds at most; None plays each cell's own number.
    """
    jobs = [
        (cell, FIRST_SEED + index, folder) for cell in cells for index in range(min(cell.seeds, most or cell.seeds))
    ]
    by_cell: dict[str, list[tuple[float, dict[str, dict[str, float]]]]] = defaultdict(list)
    with ProcessPoolExecutor(2) as pool, console.status(f"{len(jobs)} steps under {len(PEERS) + 2} policies"):
        for name, bound, found in pool.map(play, jobs):
            by_cell[name].append((bound, found))
    for cell in cells:
        runs = by_cell[cell.name]
        work = [{(found["turns"], found["output tokens"]) for found in each.values()} for _, each in runs]
        if any(len(each) != 1 for each in work):
            raise RuntimeError(f"{cell.name}: policies did different work: {work}")
        rows = [_row(cell, name, runs) for name in runs[0][1]]
        ours = rows[0]
        best = min((row for row in rows if row["policy"] in PEERS), key=lambda row: float(row["seconds"]))
        for row in rows:
            row["speed over best peer"] = float(best["seconds"]) / float(row["seconds"])
        report.rows += rows
        bound = statistics.fmean(each for each, _ in runs)
        turns, tokens = next(iter(work[0]))
        title = (
            f"{cell.name}: {cell.groups} groups of 8 on {cell.replicas} replicas, {len(runs)} seeds; equal work: "
            f"{turns:,} turns, {tokens:,} tokens (first seed); bound {bound:,.0f} s, "
            f"{float(best['seconds']) / bound:.2f}x"
        )
        print_rows(console, title, [{k: v for k, v in row.items() if k not in ("cell", "bound s")} for row in rows])
        if cell.bar is not None:
            beside = f"{best['policy']} {float(best['seconds']):,.0f} s; bound {float(best['seconds']) / bound:.2f}x"
            value = float(best["seconds"]) / float(ours["seconds"])
            report.bars.append(Bar.at_least(f"{cell.name}: speed", value, "x best peer", cell.bar, beside))


def _row(cell: Cell, name: str, runs: list[tuple[float, dict[str, dict[str, float]]]]) -> dict[str, Any]:
    seconds = [found[name]["seconds"] for _, found in runs]
    keys = ("hit %", "recomputed M", "preemptions", "p99 returning s", "migrations")
    return {
        "kind": "step",
        "cell": cell.name,
        "policy": name,
        "seconds": statistics.fmean(seconds),
        "least": min(seconds),
        "most": max(seconds),
        "bound s": statistics.fmean(bound for bound, _ in runs),
        **{key: statistics.fmean(found[name][key] for _, found in runs) for key in keys},
    }


def streams(folder: Path | None, report: Report, console: Console) -> None:
    """Play parts of the Mooncake conversation trace; nobody knows sessions there."""
    path = None if folder is None else folder / "traces" / "mooncake_conversation.jsonl.zst"
    if path is None or not path.exists():
        report.remarks.append("no recorded traces: the Mooncake stream is left out")
        return
    requests = read_trace(path)
    models = [CELLS[0].model] * 8
    for stretch in (1.0, 1.7, 2.5):  # overloaded, about saturated, below
        found = defaultdict(list)
        for seed, offset in enumerate((0, 1500, 3000)):
            workload = shapes.stream(requests, f"mooncake x{stretch}", offset=offset, stretch=stretch)
            for name, outcome in replay(workload, (OURS, *PEERS), models, seed=seed).items():
                found[name].append(outcome)
        rows = [
            {
                "kind": "stream",
                "stream": f"mooncake conversation, time x{stretch}",
                "policy": name,
                "end s": statistics.fmean(each.seconds for each in outcomes),
                "mean latency s": statistics.fmean(second for each in outcomes for second in each.turn_seconds),
                "p99 latency s": statistics.fmean(percentile(each.turn_seconds, 0.99) for each in outcomes),
                "hit %": 100 * statistics.fmean(each.hit_rate for each in outcomes),
            }
            for name, outcomes in found.items()
        ]
        report.rows += rows
        print_rows(console, "asynchronous stream, 8 replicas, three offsets", rows)


def main() -> int:
    """Run everything and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cells and seeds")
    parser.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data", help="recorded rollouts and traces"
    )
    arguments = parser.parse_args()
    console, report = Console(), Report()
    folder: Path | None = arguments.data
    if not (arguments.data / "rollouts").is_dir():
        folder = None
        report.remarks.append("no recorded rollouts (--data): all lengths are generated stand-ins")
    cells = [cell for cell in CELLS if cell.quick or not arguments.quick]
    measure(cells, QUICK_SEEDS if arguments.quick else None, folder, report, console)
    if not arguments.quick:
        measure(list(SENSITIVITY), 3, folder, report, console)
        streams(folder, report, console)
    rows = decisions.measure(500 if arguments.quick else 3000)
    report.rows += rows
    print_rows(console, "decisions, CPU time", rows)
    for row in rows:
        name = f"{row['decision']}: median"
        report.bars.append(Bar.at_most(name, float(row["median us"]), "us", DECISION_MICROSECONDS))  # type: ignore[arg-type]
    held = float(rows[0]["bytes a trajectory"])  # type: ignore[arg-type]
    report.bars.append(Bar.at_most("router memory, a trajectory", held, "B", BYTES_A_TRAJECTORY))
    report.remarks.append("simulated: iteration costs are a public cost model's, not measured here (docs/rollout.md)")
    report.print_bars(console)
    report.write(RESULT, ("numpy",))
    console.print(f"{len(report.bars) - report.missed} of {len(report.bars)} bars met; written to {RESULT}")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
