"""Run OpenRLHF's command line and read what it left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openrlhf_cpu import command
from slipstream.plugins.verl.demo import task
from slipstream.plugins.verl.demo.model import ModelSpec, cached_model
from slipstream.plugins.verl.demo.runner import MARK, TrainingError, stop_run


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "log", self.folder / "log.txt")

    @property
    def steps(self) -> list[dict[str, float]]:
        """What OpenRLHF logged after each step."""
        return [line["data"] for line in _lines(self.folder / "metrics.jsonl")]

    @property
    def samples(self) -> list[list[dict[str, Any]]]:
        """Prompt, tokens and reward of every sample, by generation batch."""
        return _lines(self.folder / "samples.jsonl")

    @property
    def syncs(self) -> list[dict[str, Any]]:
        """slipstream's events of every sync."""
        return [event for event in _lines(self.events) if event["kind"] == "weight_sync"]

    @property
    def events(self) -> Path:
        """slipstream's log, where `auto` puts it."""
        return self.folder / "out" / "slipstream.jsonl"


def train(
    folder: Path,
    *more: str,
    steps: int,
    dtype: str = "float32",
    timeout: float = 900,
    layers: int | None = None,
    **settings: Any,
) -> Run:
    """Run it to its end in `folder`.

    Args:
        more: further arguments; with an option of slipstream, its launcher is used.
        layers: of a model that was hardly trained, whose reward is another one; None for the demo's.
        settings: of `command.arguments`.

    Raises:
        TrainingError: it failed or took too long; the end of its log.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if layers is not None:
        settings["reward"] = "parity_reward.py"
    spec = ModelSpec() if layers is None else ModelSpec(layers=layers, steps=2, batch=4)
    arguments = command.arguments(
        model=cached_model(spec),
        prompts=command.write_prompts(task.problems(512, seed=1), folder / "train.jsonl"),
        steps=steps,
        more=more,
        **settings,
    )
    # Short, since Ray puts sockets under it and their paths have a limit.
    ray_folder = Path(tempfile.mkdtemp(prefix="slip-ray-"))
    gpus = settings.get("ranks", 1) + settings.get("engines", 1)
    own = {MARK: folder.name + ray_folder.name, "OPENRLHF_CPU_RAY": str(ray_folder)}
    environment = {**os.environ, **command.environment(folder, gpus, dtype), **own}
    environment.pop("RAY_ADDRESS", None)
    log = folder / "log.txt"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command.argv(arguments),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        raise TrainingError(f"training took more than {timeout:g} s", log) from None
    finally:
        stop_run(process, own[MARK], grace=5.0)
        shutil.rmtree(ray_folder, ignore_errors=True)
    if code:
        raise TrainingError(f"training failed with exit code {code}", log)
    return Run(folder)


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":  # a run by hand: FOLDER [name=value ...] [--option ...]
    place, *rest = sys.argv[1:]
    pairs = dict(argument.split("=", 1) for argument in rest if not argument.startswith("--") and "=" in argument)
    options = [argument for argument in rest if argument.partition("=")[0] not in pairs]
    numbers = {name: int(value) if value.isdigit() else value for name, value in pairs.items()}
    done = train(Path(place), *options, **{"steps": 3, **numbers})
    print(json.dumps({"steps": done.steps, "syncs": done.syncs}, indent=1))
