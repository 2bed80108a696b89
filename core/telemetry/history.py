"""A run as its event log tells it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.core.config import EVENTS_FILE
from slipstream.core.telemetry.reader import read_events
from slipstream.core.telemetry.records import (
    AnyRecord,
    ChainWritten,
    Drafting,
    LeasedStage,
    LogFull,
    Routing,
    RunStarted,
    StageFinished,
    StageStarted,
    StepFinished,
    WeightSync,
    record_of,
)

ReadLine = Callable[[Any], StepFinished | None]
"""Reads a line of a framework's own metrics file; None for one that is no step."""


class RunFileError(ValueError):
    """A file is no log of a run; the message says expected, found and what to do."""


@dataclass(frozen=True)
class StageTime:
    """When a stage ran, in seconds since the run's first line."""

    name: str
    step: int
    pipeline: str
    start: float
    end: float


@dataclass
class RunHistory:
    """Everything that one run wrote, by kind and in order."""

    path: Path
    started: RunStarted | None = None
    steps: list[StepFinished] = field(default_factory=list)
    syncs: list[WeightSync] = field(default_factory=list)
    drafting: list[Drafting] = field(default_factory=list)
    routing: list[Routing] = field(default_factory=list)
    chain: list[ChainWritten] = field(default_factory=list)
    stages: list[StageTime] = field(default_factory=list)
    leased: list[LeasedStage] = field(default_factory=list)
    """Stages that asked the cluster's arbiter for their workers."""
    unfinished: list[StageStarted] = field(default_factory=list)
    """Stages that began and never ended."""
    begin: float = 0.0
    """Unix seconds of the first line."""
    end: float = 0.0
    earlier_runs: int = 0
    """Runs in the same file that this is not."""
    full: bool = False
    """Whether the log reached its size before the run ended."""

    @property
    def name(self) -> str:
        """How the run is called on a page."""
        return self.started.name if self.started is not None else f"{self.path.parent.name}/{self.path.stem}"

    def settings_of(self, part: str, key: str) -> Any:
        """A setting of the run, for example of ``weight_sync`` its ``mode``; None where it is not known."""
        return None if self.started is None else (self.started.settings.get(part) or {}).get(key)

    @property
    def deltas(self) -> list[WeightSync]:
        """Syncs in which every worker was sent changes only."""
        return [sync for sync in self.syncs if not sync.is_seed]


def read_run(path: str | os.PathLike[str], readers: Iterable[ReadLine] = ()) -> RunHistory:
    """Read the last run of a log.

    :param path: the log, a folder that has it (``slipstream.jsonl``), or a framework's own metrics file.
    :param readers: of lines of such files; see `hooks.Framework.read_metrics`.
    :raises RunFileError: there is nothing of a run in it.
    """
    file = _file(Path(path))
    history = RunHistory(file)
    foreign: list[Any] = []
    open_stages: dict[tuple[str, str, int], StageStarted] = {}
    for event in read_events(file):
        if "kind" not in event:
            foreign.append(event)
            continue
        record = record_of(event)
        if isinstance(record, RunStarted):
            earlier = history.earlier_runs + (history.begin > 0)
            history, open_stages = RunHistory(file, started=record, earlier_runs=earlier), {}
        if record is not None:
            _take(history, record, open_stages)
    history.unfinished = list(open_stages.values())
    if not history.begin:
        history.steps = [step for line in foreign for read in readers if (step := read(line)) is not None]
        if not history.steps:
            raise RunFileError(
                f"{file}: expected the event log of a run, found none of its lines; it is what slipstream.events "
                f"names, by default {EVENTS_FILE} in the run's output folder"
            )
    return history


def _file(path: Path) -> Path:
    if path.is_dir():
        if not (path / EVENTS_FILE).is_file():
            raise RunFileError(f"{path}: expected {EVENTS_FILE} in this folder, found none; name the log itself")
        return path / EVENTS_FILE
    if not path.is_file():
        raise RunFileError(f"{path}: expected an event log or a folder with one, found nothing; check the path")
    return path


def _take(history: RunHistory, record: AnyRecord, open_stages: dict[tuple[str, str, int], StageStarted]) -> None:
    history.begin = history.begin or record.time
    history.end = max(history.end, record.time)
    if isinstance(record, StepFinished):
        history.steps.append(record)
    elif isinstance(record, WeightSync):
        history.syncs.append(record)
    elif isinstance(record, Drafting):
        history.drafting.append(record)
    elif isinstance(record, Routing):
        history.routing.append(record)
    elif isinstance(record, ChainWritten):
        history.chain.append(record)
    elif isinstance(record, LeasedStage):
        history.leased.append(record)
    elif isinstance(record, LogFull):
        history.full = True
    elif isinstance(record, StageStarted):
        open_stages[record.pipeline, record.name, record.step] = record
    elif isinstance(record, StageFinished):
        began = open_stages.pop((record.pipeline, record.name, record.step), None)
        if began is not None:
            start, end = began.time - history.begin, record.time - history.begin
            history.stages.append(StageTime(record.name, record.step, record.pipeline, start, end))
