"""Drafting beside ArcticInference's suffix decoding and a recency n-gram: tokens per verification step, and cost.

    make bench-draft [ARGS="--quick --data DIR"]       or: slipstream bench draft [--quick] [--data DIR]

Replays recorded rollouts (see `replay`), prints tables, writes benchmarks/results/draft.json, and exits with status 1
when a bar is missed. A step that verifies D drafted tokens takes 1 + c D; what counts is tokens per time,
T / (1 + c D), for several costs c. Ours is told c, as it would measure it on an engine; peers have no use for it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import arctic_build
import costs
from drafters import Arctic, Player, RecencyNgram, Slipstream
from replay import MODES, Tally, replay
from rich.console import Console
from rich.progress import Progress
from rollouts import RolloutSet, generated, recorded

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks" / "sync"))

from bars import Bar, Report, print_rows  # noqa: E402 - shared by the areas

RESULT = ROOT / "benchmarks" / "results" / "draft.json"
COSTS = {0.02: 1.20, 0.05: 1.15, 0.1: 1.13, 0.2: 1.15}
"""Cost of a drafted token, and the least mean gain over ArcticInference at it."""
FIXED = 0.2
TASKS = {"mint_alfworld_mixtral": 24, "mint_math_mixtral": 20, "tau_retail_variants": 20, "writing100x10_gpt4": 12}
"""As many as the peer tables have, all of the others; tau_retail, which they lack, is the largest."""
FIXED_BARS = {
    "math100x8_qwen25math": {"seq": (4.55, 7.2), "conc": (4.7, 6.8), "epoch": (4.8, 7.8)},
    "tau_airline": {"seq": (2.44, 3.3), "conc": (2.48, 3.4), "epoch": (3.04, 4.7)},
    "mint_alfworld_mixtral": {"seq": (7.9, 12), "conc": (8.4, 11.7), "epoch": (11.5, 19)},
    "game24_100x64_gpt4": {"seq": (2.83, 3.9), "conc": (2.94, 3.4), "epoch": (4.1, 6.8)},
    "humaneval164x32_codegen16b": {"seq": (1.67, 1.8), "conc": (1.70, 1.7), "epoch": (1.85, 2.2)},
}
"""Tokens per step at least, drafted at most, with a fixed threshold of 0.2 (`field/drafter_policy.md` section 7)."""


def row(rollouts: RolloutSet, mode: str, drafter: str, tally: Tally) -> dict[str, Any]:
    """One cell of the result."""
    return {
        "kind": "replay",
        "set": rollouts.name,
        "mode": mode,
        "drafter": drafter,
        "tokens/step": tally.tokens,
        "drafted/step": tally.drafts,
        "accepted/drafted": tally.accepted / max(1, tally.drafted),
        "steps": tally.steps,
    }


def players(make_cache: costs.MakeCache) -> dict[str, Player]:
    """Fresh drafters of every kind."""
    ours = {f"slipstream c={cost:g}": Slipstream(verify_cost=cost) for cost in COSTS}
    return {
        "arctic": Arctic(make_cache),
        "n-gram": RecencyNgram(),
        f"slipstream {FIXED:g}": Slipstream(threshold=FIXED),
        **ours,
    }


def cells(rollouts: RolloutSet, make_cache: costs.MakeCache) -> Iterator[dict[str, Any]]:
    """Every mode and drafter on one set."""
    siblings = any(len(attempts) > 1 for attempts in rollouts.tasks.values())
    for mode in MODES if siblings else ("prompt", "epoch"):
        for name, player in players(make_cache).items():
            yield row(rollouts, mode, name, replay(rollouts, mode, player))


def speed(cell: dict[str, Any], cost: float) -> float:
    """Tokens per time of a step without drafts."""
    return float(cell["tokens/step"]) / (1 + cost * float(cell["drafted/step"]))


def bars(rows: list[dict[str, Any]], *, whole: bool) -> Iterator[Bar]:
    """The promises about drafts; those of the study's table only on the `whole` sets they were measured on."""
    found = {(r["set"], r["mode"], r["drafter"]): r for r in rows}
    places = sorted({(r["set"], r["mode"]) for r in rows})
    for cost, mean in COSTS.items():
        gains: dict[tuple[str, str], float] = {}
        over_ngram: dict[tuple[str, str], float] = {}
        for place in places:
            ours = speed(found[(*place, f"slipstream c={cost:g}")], cost)
            gains[place] = ours / speed(found[(*place, "arctic")], cost)
            over_ngram[place] = ours / speed(found[(*place, "n-gram")], cost)
        studied = [gain for place, gain in gains.items() if place[0] in FIXED_BARS]
        for label, values in (("every set", list(gains.values())), ("the study's five sets", studied)):
            if values:
                where = f"speed over arctic, c = {cost:g}, {label}, geometric mean of {len(values)} cells"
                yield Bar.at_least(where, math.exp(sum(map(math.log, values)) / len(values)), "times", mean)
        for peer, values_by_place in (("arctic", gains), ("n-gram", over_ngram)):
            worst = min(values_by_place, key=values_by_place.__getitem__)
            where = f"speed over {peer}, c = {cost:g}, worst of {len(places)} cells"
            yield Bar.at_least(where, values_by_place[worst], "times", 1.0, " ".join(worst))
    if whole:
        for name, modes in FIXED_BARS.items():
            for mode, (tokens, drafted) in modes.items():
                ours = found.get((name, mode, f"slipstream {FIXED:g}"))
                if ours is not None:
                    arctic = found[(name, mode, "arctic")]
                    peer = f"arctic {arctic['tokens/step']:.2f} for {arctic['drafted/step']:.2f} drafted"
                    where = f"threshold {FIXED:g}, {name} {mode}"
                    yield Bar.at_least(where, ours["tokens/step"], "tokens/step", tokens, peer)
                    yield Bar.at_most(where, ours["drafted/step"], "drafted/step", drafted, peer)


def main() -> int:
    """Run everything and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few tasks of each set")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="recorded rollouts")
    parser.add_argument("--engine", action="store_true", help="a real vLLM with a real model, and nothing else")
    arguments = parser.parse_args()
    console, report = Console(), Report()
    if arguments.engine:
        import engine

        report.rows += engine.rows()
        print_rows(console, "engine", report.rows)
        report.bars += engine.bars(report.rows)
        return finish(report, console, RESULT.with_name("draft_engine.json"), ("vllm", "torch"))
    make_cache = arctic_build.suffix_decoding_cache()
    sets = list(recorded(arguments.data, attempts=8, tasks=4 if arguments.quick else None))
    if not arguments.quick:
        for each in sets:
            each.tasks = dict(list(each.tasks.items())[: TASKS.get(each.name)])
    if not sets:
        report.remarks.append("no recorded rollouts (--data): siblings are generated here")
        sets = [generated(16, 8)]
    with Progress(console=console, transient=True) as progress:
        for each in progress.track(sets, description="replay"):
            found = list(cells(each, make_cache))
            report.rows += found
            print_rows(progress.console, each.name, [{k: v for k, v in r.items() if k != "set"} for r in found])
    report.bars += bars(report.rows, whole=not arguments.quick)

    with console.status("cost"):
        batches = [each for each in sets if sum(map(len, each.tasks.values())) >= 4 * costs.BATCH]
        batches = [*batches[:4], generated(40, 8)]
        cost = [r for each in batches for r in costs.steps(each, make_cache)]
        groups = 16 if arguments.quick else 38
        texts = {
            "8 siblings, 5 % edits": costs.siblings(groups, 1000, 0.05),
            "no two alike": costs.siblings(groups, 1000, 1.0),
        }
        cost += costs.updates(texts, make_cache)
        cost += costs.depths(make_cache, (8, 64, 1024, 16384))
        cost += costs.off(batches[-1])
    for kind in ("step", "update", "depth", "off"):
        print_rows(console, kind, [r for r in cost if r["kind"] == kind])
    report.rows += cost
    report.bars += costs.bars(cost)

    return finish(report, console, RESULT, ("numpy", "numba"))


def finish(report: Report, console: Console, result: Path, distributions: tuple[str, ...]) -> int:
    """Print the bars, write the result, and return the exit status."""
    report.print_bars(console)
    report.write(result, distributions)
    console.print(f"{len(report.bars) - report.missed} of {len(report.bars)} bars met; written to {result}")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
