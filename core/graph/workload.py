"""What is to be scheduled: pipelines with their work a step, what it costs, and the cluster they share."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from slipstream.core.graph.compiled.model import Floats
from slipstream.core.graph.errors import WorkloadError
from slipstream.core.graph.interference import Interference


class DecodeCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What rollout costs on one worker: an iteration with b active requests takes iteration + per_request * b."""

    iteration: float
    """Seconds."""
    per_request: float
    """Seconds."""
    prefill: float
    """Seconds to prefill one token."""


class StageSeconds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of the stages behind a rollout, each on all workers."""

    logprob: float
    """Old and reference log-probabilities."""
    train: float
    sync: float
    """Weights reach the rollout engines."""


class MemoryFloor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Share of a GPU's memory that a stage needs at least to run."""

    decode: float = 0.35
    train: float = 0.50


class Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One training run."""

    name: str
    decode: DecodeCost
    stages: StageSeconds
    lengths: tuple[tuple[float, ...], ...]
    """Tokens that each request of each step generates; the members of a prompt group stand together."""
    group: int = 8
    """Samples a prompt."""
    prompt_tokens: float = 150.0
    memory: MemoryFloor = MemoryFloor()
    staleness: int = 0
    """0 for synchronous training; how many steps a rollout may be ahead of the weights it samples from."""
    latency_cap: float | None = None
    """Most times its own exclusive time that the pipeline may take."""

    def step_lengths(self) -> list[Floats]:
        """Return the tokens of each request, float64[n] a step."""
        return [np.asarray(step, np.float64) for step in self.lengths]


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pipelines that share a cluster of equal workers (a worker is what one engine replica runs on)."""

    workers: int
    pipelines: tuple[Pipeline, ...]
    interference: float = 1.0
    """Scale of the interference table."""
    name: str = "workload"
    slowdowns: tuple[tuple[float | None, ...], ...] = ()
    """Extra time by kind and kind beside it, as measured (`profile.Profile.slowdowns`); None where nothing was."""

    def __post_init__(self) -> None:
        """Check what types cannot say."""
        self._expect(self.workers >= 1, f"workers: expected at least 1, got {self.workers}")
        self._expect(len(self.pipelines) > 0, "pipelines: expected at least one")
        names = [pipeline.name for pipeline in self.pipelines]
        self._expect(len(set(names)) == len(names), f"pipelines: expected different names, got {', '.join(names)}")
        self._expect(self.interference >= 0.0, f"interference: expected at least 0, got {self.interference}")
        for pipeline in self.pipelines:
            where = f"pipelines.{pipeline.name}"
            sizes = {len(step) for step in pipeline.lengths}
            self._expect(
                len(sizes) == 1 and sizes.pop() > 0, f"{where}.lengths: expected equally many requests in every step"
            )
            shortest = min(min(step) for step in pipeline.lengths)
            self._expect(shortest >= 1.0, f"{where}.lengths: expected at least one token, got {shortest}")
            cost, stages, memory = pipeline.decode, pipeline.stages, pipeline.memory
            self._expect(cost.iteration > 0, f"{where}.decode.iteration: expected above 0, got {cost.iteration}")
            self._expect(
                min(cost.per_request, cost.prefill, stages.logprob, stages.train, stages.sync) >= 0.0,
                f"{where}: expected no negative seconds",
            )
            self._expect(
                0.0 <= max(memory.decode, memory.train) <= 1.0,
                f"{where}.memory: expected shares up to 1, got {memory.decode} and {memory.train}",
            )
            self._expect(pipeline.staleness in (0, 1), f"{where}.staleness: expected 0 or 1, got {pipeline.staleness}")
            self._expect(pipeline.group >= 1, f"{where}.group: expected at least 1, got {pipeline.group}")
            self._expect(
                pipeline.latency_cap is None or pipeline.latency_cap >= 1.0,
                f"{where}.latency_cap: expected at least 1 (the pipeline alone), got {pipeline.latency_cap}",
            )

    @property
    def rates(self) -> Floats:
        """Progress of two kinds of load side by side, as `Interference.rates` gives it."""
        measured = np.array(self.slowdowns, dtype=np.float64) if self.slowdowns else None  # None becomes not-a-number
        return Interference(scale=self.interference, measured=measured).rates()

    def _expect(self, condition: bool, message: str) -> None:
        if not condition:
            raise WorkloadError(f"workload {self.name!r}: {message}")


class DrawnLengths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lengths that a workload file leaves to a lognormal distribution."""

    requests: int
    steps: int
    longest: float = 8192.0
    sigma: float = 0.8
    seed: int = 0

    def draw(self) -> tuple[tuple[float, ...], ...]:
        """Return the lengths, the longest of all at `longest`."""
        drawn = np.random.default_rng(self.seed).lognormal(0.0, self.sigma, (self.steps, self.requests))
        scaled = np.maximum(1.0, np.round(drawn * (self.longest / drawn.max())))
        return tuple(tuple(step) for step in scaled.tolist())


class _FilePipeline(Pipeline, frozen=True, forbid_unknown_fields=True, kw_only=True):
    lengths: tuple[tuple[float, ...], ...] | DrawnLengths  # type: ignore[assignment]


class _WorkloadFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    workers: int
    pipelines: tuple[_FilePipeline, ...]
    interference: float = 1.0
    name: str = ""


def read_workload(file: Path) -> Workload:
    """Read a workload from JSON or YAML (`docs/graph.md` shows one).

    Raises:
        WorkloadError: naming the key that is wrong.
    """
    data = file.read_bytes()
    try:
        found = msgspec.json.decode(data, type=_WorkloadFile) if file.suffix == ".json" else _from_yaml(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise WorkloadError(f"{file}: {error}; docs/graph.md shows a workload file") from error
    pipelines = []
    for pipeline in found.pipelines:
        lengths = pipeline.lengths
        drawn = lengths.draw() if isinstance(lengths, DrawnLengths) else lengths
        fields = {name: getattr(pipeline, name) for name in Pipeline.__struct_fields__}
        pipelines.append(Pipeline(**{**fields, "lengths": drawn}))
    return Workload(
        workers=found.workers,
        pipelines=tuple(pipelines),
        interference=found.interference,
        name=found.name or file.stem,
    )


def _from_yaml(data: bytes) -> _WorkloadFile:
    return msgspec.yaml.decode(data, type=_WorkloadFile)
