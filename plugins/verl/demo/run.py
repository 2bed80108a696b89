"""`slipstream demo`: train a small model with real verl and vLLM, first as it is, then with slipstream, and compare."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.core.config import EVENTS_FILE
from slipstream.core.telemetry import read_events
from slipstream.core.telemetry.history import read_run
from slipstream.core.telemetry.report import page
from slipstream.plugins.verl.demo import task
from slipstream.plugins.verl.demo.arguments import check_overrides, model_folder_of, split
from slipstream.plugins.verl.demo.command import training_command
from slipstream.plugins.verl.demo.folders import default_cache, exclusive
from slipstream.plugins.verl.demo.model import cached_model, model_folder
from slipstream.plugins.verl.demo.report import (
    NATIVE,
    OVERRIDE,
    Syncs,
    compared,
    conditions,
    figures,
    print_comparison,
    verdict,
)
from slipstream.plugins.verl.demo.side_by_side import run_side_by_side
from slipstream.plugins.verl.telemetry import step_of

STEPS = {None: 10, "smollm2": 4}
DURATIONS = {None: "2 to 7 minutes on two cores", "smollm2": "5 to 20 minutes on two cores, and 20 GB of memory"}
"""From the slowest and the fastest machine it was run on; the environment is there already."""


def demo(model: str | None = None, arguments: Sequence[str] = ()) -> int:
    """Run the comparison and print it.

    Args:
        model: None for the small model trained on the spot, `smollm2`, or a folder.
        arguments: further Hydra overrides, given to both runs; settings of slipstream to its run only.

    Returns:
        0 if every sync left the engine with exactly the trainer's weights, else 1.

    Raises:
        ArgumentError: the model or an override cannot be used.
        FolderInUseError: another demo is running.
    """
    from rich.console import Console

    both, ours = split(arguments)
    folder_given = None if model in STEPS else model_folder_of(str(model))
    steps = check_overrides(both, [OVERRIDE, *ours], STEPS.get(model, STEPS[None]))
    console = Console()
    folder = default_cache() / "demo"
    with exclusive(folder):
        takes = f"Takes {DURATIONS[model]}." if model in DURATIONS else "How long it takes depends on the model."
        console.print(
            "[bold]slipstream demo[/]: real verl GRPO with real vLLM on this CPU, twice with the same seed. " + takes
        )
        console.print(f"logs and results: {folder}", highlight=False, soft_wrap=True)
        settings = _settings(model, folder_given, folder)
        events = folder / "slipstream" / EVENTS_FILE
        events.unlink(missing_ok=True)
        # The audit reloads the engine densely after every sync; its time is not part of the sync times below.
        switched = [OVERRIDE, *ours, "slipstream.weight_sync.audit_every=1", f"slipstream.events={events}"]
        first = training_command(folder=folder / "native", overrides=both, **settings)
        second = training_command(folder=folder / "slipstream", overrides=[*both, *switched], **settings)
        native, slipstream = run_side_by_side(
            (NATIVE, dataclasses.replace(first, steps=steps)), (OVERRIDE, dataclasses.replace(second, steps=steps))
        )
        syncs = Syncs([event for event in read_events(events) if event["kind"] == "weight_sync"])
        print_comparison(console, native, slipstream, syncs)
        result = folder / "result.json"
        today = datetime.date.today().isoformat()
        content = {"model": model, "date": today, "figures": figures(compared(native, slipstream, syncs), syncs)}
        result.write_text(json.dumps(content, indent=1) + "\n")
        report = _write_report(folder / "report.html", events, first.metrics_file)
    for line in conditions(model):
        console.print(f"* {line}", highlight=False)
    line, well = verdict(native, slipstream, syncs)
    console.print(f"[{'bold green' if well else 'bold red'}]{line}[/]")
    console.print(f"figures: {result}", highlight=False, soft_wrap=True)
    console.print(f"open the report in a browser: {report}", highlight=False, soft_wrap=True)
    console.print(
        f"made by: slipstream report {events} --baseline {first.metrics_file}", highlight=False, soft_wrap=True
    )
    return 0 if well else 1


def _write_report(page_file: Path, events: Path, baseline: Path) -> Path:
    """Write the page of both runs and return its path; verl's own run is read from what verl wrote about it."""
    page_file.write_text(page([read_run(events)], read_run(baseline, [step_of])), encoding="utf-8")
    return page_file


def _settings(model: str | None, folder_given: Path | None, folder: Path) -> dict[str, Any]:
    if model == "smollm2":
        from slipstream.plugins.verl.demo import smollm2

        return smollm2.settings(folder, STEPS[model])
    return {
        "model": folder_given or _pretrained(),
        "train_file": task.write_parquet(task.problems(512, seed=1), folder / "train.parquet"),
        "steps": STEPS[None],
        "dtype": "bfloat16",
        "seed": 1,
        "prompts_per_step": 8,
    }


def _pretrained() -> Path:
    from rich.progress import Progress

    if model_folder().is_dir():
        return cached_model()
    with Progress() as progress:
        row = progress.add_task("pre-training a small model (about a minute, then cached)", total=None)
        return cached_model(
            progress=lambda done, total, loss: progress.update(
                row, completed=done, total=total, description=f"pre-training a small model, loss {loss:.2f}"
            )
        )
