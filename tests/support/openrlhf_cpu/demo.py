"""`make demo-openrlhf`: real OpenRLHF with real DeepSpeed and vLLM on this CPU, twice with the same seed, compared."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from rich.console import Console

from openrlhf_cpu.runs import Run, train
from slipstream.plugins.verl.demo.folders import default_cache, exclusive
from slipstream.plugins.verl.demo.report import Comparison, Syncs, print_table, verdict_of

NATIVE, OURS = "OpenRLHF's default", "--slipstream.weight_sync delta"
STEPS = 8


def main() -> int:
    """Run the comparison and print it; 0 if every sync left the engine with exactly the trainer's weights."""
    console = Console()
    folder = default_cache() / "demo-openrlhf"
    with exclusive(folder):
        console.print(
            "[bold]slipstream demo[/]: real OpenRLHF REINFORCE++ (baseline) with real DeepSpeed and vLLM on this CPU, "
            "twice with the same seed. Takes some minutes on two cores."
        )
        console.print(f"logs and results: {folder}", highlight=False, soft_wrap=True)
        runs = {}
        for name, label, more in (
            ("native", NATIVE, ()),
            ("slipstream", OURS, (*OURS.split(), "--slipstream.weight_sync.audit_every", "1")),
        ):
            console.print(f"{label}: {STEPS} steps ...", highlight=False)
            runs[name] = train(folder / name, *more, *sys.argv[1:], steps=STEPS, dtype="bfloat16", engines=1)
    native, ours = runs["native"], runs["slipstream"]
    syncs = Syncs(ours.syncs)
    comparison = _compared(native, ours, syncs)
    print_table(console, NATIVE, OURS, comparison, syncs)
    for line in (
        f"Seconds of {OURS} are without the audit (a dense load after every sync), which the demo adds.",
        f"Bytes of {NATIVE} are computed, not measured: every weight in the trainer's dtype.",
        "Both runs use the CPU test bed of tests/support/openrlhf_cpu; docs/openrlhf.md lists what it stands in for.",
    ):
        console.print(f"* {line}", highlight=False)
    line, well = verdict_of((comparison.equal, comparison.total), syncs, expected=len(ours.steps))
    console.print(f"[{'bold green' if well else 'bold red'}]{line}[/]")
    return 0 if well else 1


def _compared(native: Run, ours: Run, syncs: Syncs) -> Comparison:
    audits = [event["audit_seconds"] for event in syncs.events]
    pairs = [
        (a["tokens"], b["tokens"])
        for first, second in zip(native.samples, ours.samples, strict=True)
        for a, b in zip(first, second, strict=True)
    ]
    # The first sync is a seed, as every one of OpenRLHF's is.
    return Comparison(
        native_seconds=[step["timing/broadcast"] for step in native.steps][1:],
        our_seconds=[step["timing/broadcast"] - audit for step, audit in zip(ours.steps, audits, strict=True)][1:],
        native_rewards=_rewards(native),
        our_rewards=_rewards(ours),
        equal=sum(a == b for a, b in pairs),
        total=len(pairs),
    )


def _rewards(run: Run) -> list[float]:
    return [statistics.mean(sample["reward"] for sample in step) for step in run.samples]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    sys.exit(main())
