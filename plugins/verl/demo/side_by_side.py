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


def run_side_by_side(first: tuple[str, TrainingCommand], second: tuple[str, TrainingCommand]) -> list[RunResult]:
    """Run both (label, command) with a live line each.

    The second waits, fully started, until the first has ended, so that neither is measured while the other works.

    Raises:
        TrainingError: one of them failed; the other is ended.
    """
    gate = Path(second[1].folder) / "gate"
    gate.parent.mkdir(parents=True, exist_ok=True)
    gate.unlink(missing_ok=True)
    second[1].env[START_GATE] = str(gate)
    failed = threading.Event()
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
                    on_step=show,
                    on_stage=say,
                    cancelled=failed.is_set,
                )
            except BaseException:
                failed.set()
                raise
            finally:
                gate.touch()

        runs = [pool.submit(run, *first), pool.submit(run, *second)]
        errors = [error for future in runs if (error := future.exception()) is not None]
        if errors:
            raise next((error for error in errors if "cancelled" not in str(error)), errors[0])
        return [future.result() for future in runs]
