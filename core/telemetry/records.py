"""What a run's event log holds: one typed record a line.

A record's kind is its tag. Readers skip kinds and fields that they do not know, so a log of a newer slipstream can
still be read; `FORMAT` grows when the meaning of something that is here changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

FORMAT: Final = 1


class Record(msgspec.Struct, tag_field="kind", frozen=True, kw_only=True):
    """One line; `time` and `pid` are added when it is written."""

    time: float = 0.0
    """Unix seconds when it was written; set by the log."""
    pid: int = 0
    """Process that wrote it; set by the log."""


class RunStarted(Record, tag="run_started", frozen=True, kw_only=True):
    """The first line of a run; what follows belongs to it."""

    name: str
    """How its owner calls it, for example project and experiment."""
    versions: dict[str, str]
    """Of what takes part, by distribution."""
    settings: dict[str, Any]
    """The resolved `slipstream` node."""
    format: int = FORMAT


class StageStarted(Record, tag="stage_started", frozen=True, kw_only=True):
    """A stage of a training step has begun."""

    name: str
    step: int
    pipeline: str = "main"
    workers: tuple[str, ...] = ()


class StageFinished(Record, tag="stage_finished", frozen=True, kw_only=True):
    """The stage of this name, step and pipeline that began last has ended."""

    name: str
    step: int
    pipeline: str = "main"


class LeasedStage(Record, tag="stage", frozen=True, kw_only=True):
    """A stage that ran on leased workers, where several runs share a cluster."""

    pipeline: str
    step: int
    stage: str
    began: float
    """Unix seconds."""
    seconds: float
    waited: float
    """Seconds for its lease, before it began."""


class StepFinished(Record, tag="step", frozen=True, kw_only=True):
    """A training step, as the framework's tracker was told."""

    step: int
    seconds: float
    stages: dict[str, float] = {}
    """Seconds of the framework's own stages, by its names for them; those within others are left out."""
    sync_seconds: float | None = None
    """Of the stage that brings new weights into the engines, whoever does it."""
    rollout_seconds: float | None = None
    """Of the stage that waits for responses."""
    reward: float | None = None
    """Mean over the responses of the step."""
    response_tokens: float | None = None
    """Mean length of a response."""
    tokens_per_second: float | None = None
    """As the framework counts it: prompt and response tokens of the step, a second and device."""


class WeightSync(Record, tag="weight_sync", frozen=True, kw_only=True):
    """One acknowledged sync; the fields are those of `core.weights.SyncReport`."""

    step: int | None
    run: int
    base: int | None
    target: int
    stage_seconds: float
    deliver_seconds: float
    apply_seconds: float = 0.0
    payload_bytes: int
    dense_bytes: int
    changed_elements: int
    total_elements: int
    tensors: int
    workers: int
    seeded_workers: int
    level: int
    unverified_tensors: int
    audit_seconds: float = 0.0
    audited_tensors: int = 0
    late_workers: int = 0
    layers: dict[str, tuple[int, int]] = {}
    """(changed elements, elements) of each layer, in the order of the checkpoint; empty for a seed."""

    @property
    def seconds(self) -> float:
        """Without the audit."""
        return self.stage_seconds + self.deliver_seconds

    @property
    def is_seed(self) -> bool:
        """Whether some worker was sent everything."""
        return self.seeded_workers > 0


class ChainWritten(Record, tag="chain", frozen=True, kw_only=True):
    """One version written as files, or why it was not."""

    target: int
    seconds: float
    chain: dict[str, Any] | None = None
    error: str = ""


class Drafting(Record, tag="drafter", frozen=True, kw_only=True):
    """What the drafters of all replicas did in a step; tokens are sums over them."""

    step: int | None
    acceptance: float
    """Accepted tokens a verified one."""
    tokens_per_step: float
    """Tokens that a request got a step of the engine; 1 without drafts."""
    drafted: float
    verified: float
    accepted: float
    emitted: float
    seconds: float
    """Spent in drafting."""
    off_share: float
    """Share of engine steps that the load switch kept without drafts."""
    drafting: float
    """Share of replicas that draft at the end of the step."""
    turned_on: float
    turned_off: float
    probes: float
    fed: float
    history_tokens: float
    history_mbytes: float

    @classmethod
    def from_metrics(cls, step: int | None, values: Mapping[str, float]) -> Drafting:
        """Build from what the tracker gets."""
        return cls(step=step, **values)  # type: ignore[arg-type]


class ReplicaLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica did in a step."""

    running: float
    """Mean number of requests in flight."""
    answers: float
    output_tokens: float
    hit_rate: float | None = None
    """Share of prompt tokens found in its cache; None where the engine does not say."""


class Routing(Record, tag="router", frozen=True, kw_only=True):
    """What the router did in a step."""

    step: int | None
    queue_mean: float
    queue_max: float
    wait_seconds_mean: float
    wait_seconds_max: float
    hit_rate: float
    prompt_tokens: float
    recomputed_tokens: float
    imbalance: float
    """1 when all replicas produced the same, their number when one produced everything."""
    parked: float = 0.0
    return_moves: float = 0.0
    migrations: float = 0.0
    evacuated: float = 0.0
    replicas: dict[str, ReplicaLoad] = {}
    """By the number of the replica."""

    @classmethod
    def from_metrics(cls, step: int | None, values: Mapping[str, float]) -> Routing:
        """Build from what the tracker gets: a replica's values are called `replica_<number>/<name>`."""
        own: dict[str, Any] = {}
        replicas: dict[str, dict[str, float]] = {}
        for name, value in values.items():
            replica, _, part = name.rpartition("/")
            if replica:
                replicas.setdefault(replica.removeprefix("replica_"), {})[part] = value
            else:
                own[name] = value
        return msgspec.convert({"kind": "router", "step": step, **own, "replicas": replicas}, cls, strict=False)


class LogFull(Record, tag="log_full", frozen=True, kw_only=True):
    """The log has reached its size; the run went on without it."""

    bytes: int


AnyRecord = (
    RunStarted
    | StageStarted
    | StageFinished
    | LeasedStage
    | StepFinished
    | WeightSync
    | ChainWritten
    | Drafting
    | Routing
    | LogFull
)


def record_of(event: Mapping[str, Any]) -> AnyRecord | None:
    """Return a line of a log as a record, or None for one that this version has no record for."""
    try:
        record: AnyRecord = msgspec.convert(event, AnyRecord)
    except msgspec.ValidationError:
        return None
    return record


def finite(value: Any) -> float | None:
    """Return a framework's metric as a number; None where there is none, or it is not finite."""
    return None if value is None or not math.isfinite(value) else float(value)
