"""`slipstream demo`: train a small model with real verl and vLLM, first as it is, then with slipstream, and compare."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.core.telemetry import read_events
from slipstream.plugins.verl.demo import task
from slipstream.plugins.verl.demo.command import training_command
from slipstream.plugins.verl.demo.model import cached_model, default_cache
from slipstream.plugins.verl.demo.runner import RunResult
from slipstream.plugins.verl.demo.side_by_side import run_side_by_side

STEPS = 10
OVERRIDE = "+slipstream=sync"


@dataclass(frozen=True)
class Syncs:
    """What the event log says about the syncs of one run."""

    events: list[dict[str, Any]]

    @property
    def deltas(self) -> list[dict[str, Any]]:
        """Syncs after the dense seed."""
        return [event for event in self.events if event["seeded_workers"] == 0]

    @property
    def identical(self) -> int:
        """Syncs after which the engine was loaded densely by vLLM's own loader and no checksum changed."""
        return sum(event["audited_tensors"] > 0 for event in self.events)

    def median(self, *keys: str) -> float:
        """Median over the deltas of a sum of fields."""
        return float(statistics.median(sum(event[key] for key in keys) for event in self.deltas))

    @property
    def changed_share(self) -> float:
        """Share of elements that changed, over all deltas."""
        return self.median("changed_elements") / float(self.deltas[0]["total_elements"])


def demo(model: str | None = None, arguments: Sequence[str] = ()) -> int:
    """Run the comparison and print it.

    Args:
        model: None for the small model trained on the spot, `smollm2`, or a folder.
        arguments: further Hydra overrides, given to both runs.

    Returns:
        0 if every sync left the engine with exactly the trainer's weights, else 1.
    """
    from rich.console import Console

    console = Console()
    folder = default_cache() / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    console.print(
        "[bold]slipstream demo[/]: real verl GRPO with real vLLM on this CPU, twice with the same seed. "
        "Takes 2 to 6 minutes (smollm2: 5 to 20, and 20 GB of memory)."
    )
    settings = _settings(model, folder)
    events = folder / "events.jsonl"
    events.unlink(missing_ok=True)
    # The audit reloads the engine densely after every sync; its time is not part of the sync times below.
    switched = [OVERRIDE, "slipstream.weight_sync.audit_every=1", f"slipstream.events={events}"]
    native, ours = run_side_by_side(
        ("verl as it is", training_command(folder=folder / "native", overrides=list(arguments), **settings)),
        (OVERRIDE, training_command(folder=folder / "slipstream", overrides=[*arguments, *switched], **settings)),
    )
    syncs = Syncs([event for event in read_events(events) if event["kind"] == "weight_sync"])
    _print(console, native, ours, syncs)
    expected = len(ours.steps) + 1  # one seed before the first step
    identical = syncs.identical
    style = "bold green" if identical == expected else "bold red"
    console.print(f"[{style}]identical: {identical} of {expected} syncs[/]")
    return 0 if identical == expected == len(syncs.events) else 1


def _settings(model: str | None, folder: Path) -> dict[str, Any]:
    train_file = folder / "train.parquet"
    if model == "smollm2":
        from slipstream.plugins.verl.demo import smollm2

        return smollm2.settings(folder)
    task.write_parquet(task.problems(512, seed=1), train_file)
    path = Path(model) if model else _pretrained()
    return {
        "model": path,
        "train_file": train_file,
        "steps": STEPS,
        "dtype": "bfloat16",
        "seed": 1,
        "prompts_per_step": 8,
    }


def _pretrained() -> Path:
    from rich.progress import Progress

    with Progress() as progress:
        row = progress.add_task("pre-training a small model (about a minute, then cached)", total=None)
        return cached_model(
            progress=lambda done, total, loss: progress.update(
                row, completed=done, total=total, description=f"pre-training a small model, loss {loss:.2f}"
            )
        )


def _print(console: Any, native: RunResult, ours: RunResult, syncs: Syncs) -> None:
    from rich.table import Table

    audits = [event["audit_seconds"] for event in syncs.deltas]
    native_seconds = statistics.median(step.update_weights_seconds for step in native.steps)
    our_seconds = statistics.median(
        step.update_weights_seconds - audit for step, audit in zip(ours.steps, audits, strict=True)
    )
    dense, payload = syncs.median("dense_bytes"), syncs.median("payload_bytes")
    table = Table("", "verl as it is", OVERRIDE, "ratio")
    less = f"{dense / payload:.1f}x less" if payload else "nothing changed"  # no reward differed, so no gradient
    table.add_row("bytes a sync", _bytes(dense), _bytes(payload), less)
    table.add_row(
        "seconds a sync",
        f"{native_seconds:.3f}",
        f"{our_seconds:.3f}",
        f"{native_seconds / our_seconds:.2f}x faster"
        if our_seconds <= native_seconds
        else f"{our_seconds / native_seconds:.2f}x slower",
    )
    table.add_row("weights changed a step", "", f"{100 * syncs.changed_share:.1f} %", "")
    table.add_row(
        "reward, first to last step",
        f"{native.rewards[0]:.2f} to {native.rewards[-1]:.2f}",
        f"{ours.rewards[0]:.2f} to {ours.rewards[-1]:.2f}",
        "",
    )
    same, total = _equal_responses(native, ours)
    table.add_row("equal responses", "", f"{same} of {total}", "")
    console.print(table)


def _equal_responses(native: RunResult, ours: RunResult) -> tuple[int, int]:
    pairs = [
        pair for step in native.steps for pair in zip(native.rollouts(step.step), ours.rollouts(step.step), strict=True)
    ]
    return sum(a == b for a, b in pairs), len(pairs)


def _bytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB"
