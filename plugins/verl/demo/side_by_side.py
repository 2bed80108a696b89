"""Run two training commands that start together and train one after the other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from slipstream.plugins.verl.cpu.gate import START_GATE
from slipstream.plugins.verl.demo.command import TrainingCommand
from slipstream.plugins.verl.demo.runner import RunResult, StepMetrics, run_training

_TIMEOUT_SECONDS = 7200.0
_GRACE_SECONDS = 3.0
"""Between asking and killing, up to three times a run: whoever presses Ctrl-C waits for it."""


def run_side_by_side(first: tuple[str, TrainingCommand], second: tuple[str, TrainingCommand]) -> list[RunResult]:
    """Run both (label, command) with a live line each.

    The second waits, fully started, until the first has ended, so that neither is measured while the other works.

    Raises:
        TrainingError: one of them failed; the other is ended.
        KeyboardInterrupt: both are ended first. They run in sessions of their own, so no signal of a terminal does it.
    """
    gate = Path(second[1].folder) / "gate"
    gate.parent.mkdir(parents=True, exist_ok=True)
    gate.unlink(missing_ok=True)
    second[1].env[START_GATE] = str(gate)
    ending = threading.Event()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns) as progress, ThreadPoolExecutor(2) as pool:

        def run(label: str, command: TrainingCommand) -> RunResult:
            row = progress.add_task(label, total=command.steps, note="starting")

            def say(note: str, advance: int = 0) -> None:
                progress.update(row, advance=advance, note=note)
                if not progress.console.is_terminal:  # where no bar is drawn, in a file say
                    progress.console.print(f"{label}: {note}")

            def show(step: StepMetrics) -> None:
                say(f"step {step.step}, reward {step.reward:.2f}, {step.step_seconds:.0f} s a step", advance=1)

            try:
                return run_training(
                    command,
                    timeout=_TIMEOUT_SECONDS,
                    grace=_GRACE_SECONDS,
                    on_step=show,
                    on_stage=say,
                    cancelled=ending.is_set,
                )
            except BaseException:
                ending.set()
                raise
            finally:
                gate.touch()

        try:
            runs = [pool.submit(run, *first), pool.submit(run, *second)]
            errors = [error for future in runs if (error := future.exception()) is not None]
        except BaseException:
            progress.console.print("stopping both runs")
            raise
        finally:
            ending.set()  # leaving the pool waits for its threads
        if errors:
            raise next((error for error in errors if "cancelled" not in str(error)), errors[0])
        return [future.result() for future in runs]
