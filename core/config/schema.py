"""The schema of the ``slipstream`` node: frozen dataclasses that validate themselves when they are built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from slipstream.core.config.errors import ConfigError
from slipstream.core.config.fields import above, at_least, between, convert_fields, or_provided

AUTO_EVENTS: Final = "auto"
"""``slipstream.events`` of a log in the folder that the framework keeps for the run."""
EVENTS_FILE: Final = "slipstream.jsonl"
"""Of that log."""


@dataclass(frozen=True)
class WeightSyncConfig:
    """How trained weights reach the rollout engines (``slipstream.weight_sync``)."""

    node_path: ClassVar[str] = "slipstream.weight_sync"

    mode: Literal["delta", "dense", "native"] = "native"
    """``delta`` ships what changed since the last acknowledged sync, ``dense`` ships every element over the same
    acknowledged path, ``native`` leaves the framework's own path untouched."""

    level: Literal["auto", 0, 1, 2] = field(default="auto", metadata=or_provided("codecs", "level"))
    """Codec level of a delta: 0 is fastest, 2 smallest, further ones are plugins'; ``auto`` chooses one of these three
    for each link by measured bandwidth and codec speed."""

    snapshot: Literal["host", "device"] = "host"
    """Where the trainer keeps the last acknowledged weights."""

    senders: Literal["all", "one"] = "all"
    """``all``: every trainer rank sends the shards it holds, where the framework shows them; ``one``: tensors are
    gathered first and sent by one rank (colocated: by each rank to the worker on its GPU)."""

    transport: str = field(
        default="auto", metadata={"expected": "auto, zeromq, shared_memory, ray, torch_distributed, or a plugin's"}
    )
    """What carries frames: ``zeromq``, ``shared_memory`` (one host), ``ray`` (object store), ``torch_distributed`` (a
    process group of its own, NCCL or gloo), or one that another plugin provides. ``auto``: what measured best for the
    link, which is ZeroMQ so far."""

    chain: str | None = field(default=None, metadata={"expected": "a path or URL"})
    """Where every acknowledged version is also written as files, any URL that fsspec opens; None for nowhere."""

    timeout_seconds: float = field(default=300.0, metadata=above(0, at_most=1e6))
    """A sync whose acknowledgements do not arrive in this time raises. At most 11 days, as sockets count milliseconds
    in 32 bits."""

    chunk_megabytes: int = field(default=64, metadata=above(0))
    """Size of the pieces that are sent, in MiB; the changes of one tensor are never cut."""

    audit_every: int = field(default=0, metadata=at_least(0))
    """Every so many syncs the engine is also loaded densely by its own loader and the checksums must agree;
    0 switches the audit off."""

    verify_every: int = field(default=16, metadata=at_least(0))
    """Every so many syncs the workers recompute their fingerprints from memory instead of carrying them forward with
    the changes; 0 only after dense seeds."""

    history_share: float = field(default=0.125, metadata=at_least(0))
    """Host memory for the changes of the last syncs, as a share of the dense size: an engine that missed some of them
    is sent what changed since then; 0 keeps none, and it is sent everything."""

    strict_seams: bool = True
    """Raise when a patch point of the framework or the engine does not look as expected; false only warns."""

    def __post_init__(self) -> None:
        convert_fields(self)


@dataclass(frozen=True)
class DrafterConfig:
    """What rollout engines draft from (``slipstream.drafter``)."""

    node_path: ClassVar[str] = "slipstream.drafter"

    mode: Literal["suffix", "off"] = field(default="off", metadata=or_provided("drafters"))
    """``suffix`` drafts copies of earlier text, ``off`` leaves the engine's own setting untouched; others are
    plugins'."""

    budget_megabytes: int = field(default=512, metadata=at_least(0))
    """Host memory for history and index of one engine replica, in MiB; reserved at once, taken as it fills."""

    longest_draft: int = field(default=64, metadata=between(0, 64))
    """Most tokens of a draft."""

    threshold: float = field(default=0.0, metadata=between(0, 1))
    """Least probability that a draft is accepted whole; 0 follows from the measured cost of verification (0.2 until
    there are measurements)."""

    verify_cost: float = field(default=0.0, metadata=at_least(0))
    """Cost of verifying one more token per request, as a share of a step without drafts; 0 measures it."""

    def __post_init__(self) -> None:
        convert_fields(self)


@dataclass(frozen=True)
class RouterConfig:
    """Who decides which rollout replica serves a request, and when (``slipstream.router``)."""

    node_path: ClassVar[str] = "slipstream.router"

    mode: Literal["cache_aware", "native"] = field(default="native", metadata=or_provided("routing_policies"))
    """``cache_aware`` admits trajectories so that their contexts stay in the replicas' caches, ``native`` leaves the
    framework's own load balancer untouched; others are plugins'."""

    weights: Literal["reset", "keep"] = "reset"
    """What a weight update does to cached prefixes: ``reset`` when engines drop them, ``keep`` when they serve on from
    old ones."""

    stall_seconds: float = field(default=600.0, metadata=above(0))
    """A replica with requests that was not heard of for so long is treated as lost until it is heard again."""

    move_seconds: float = field(default=2.0, metadata=at_least(0))
    """Time between looks for a request that should go on elsewhere; 0 keeps every trajectory where it is."""

    seed: int = field(default=0, metadata=at_least(0))
    """Of the tie breaks."""

    def __post_init__(self) -> None:
        convert_fields(self)


@dataclass(frozen=True)
class PlacementConfig:
    """Whether runs that share a cluster take turns (``slipstream.placement``)."""

    node_path: ClassVar[str] = "slipstream.placement"

    mode: Literal["graph", "native"] = "native"
    """``graph`` asks the cluster's arbiter for the GPUs before every stage, ``native`` takes the run to be alone."""

    name: str | None = field(default=None, metadata={"expected": "a name"})
    """Of this run, in the arbiter and in traces; None: project, experiment and a random part."""

    rollout_memory: float | None = field(default=None, metadata={"expected": "a share from 0 to 1"})
    """Share of a GPU's memory that a rollout needs; None: what the engine was configured to take."""

    train_memory: float = field(default=1.0, metadata=between(0, 1))
    """Share of a GPU's memory that log-prob and training need; below 1, a rollout of another run may go on beside them
    if both fit."""

    lease_seconds: float = field(default=60.0, metadata=above(0))
    """A run that was not heard of for so long has died: others get its GPUs. The first run of a cluster decides."""

    wait_seconds: float = field(default=10.0, metadata=above(0))
    """An arbiter that does not answer for so long is gone; the run goes on as if it were alone, and asks again a
    minute later."""

    overlap: bool = False
    """Compute old log-probabilities of prompt groups that have ended while the rest of the rollout goes on, where
    rollout and trainer fit beside each other (`rollout_memory` and `train_memory`)."""

    engine_threads: int | None = field(default=None, metadata={"expected": "a percentage from 1 to 100"})
    """Share of a GPU's threads that an engine may use, in per cent, where NVIDIA's MPS runs; None: all."""

    def __post_init__(self) -> None:
        convert_fields(self)
        if self.engine_threads is not None and not 1 <= self.engine_threads <= 100:
            raise ConfigError(
                f"{self.node_path}.engine_threads: expected a percentage from 1 to 100, got {self.engine_threads}; "
                "null sets no limit"
            )
        if self.rollout_memory is not None and not 0.0 <= self.rollout_memory <= 1.0:
            raise ConfigError(
                f"{self.node_path}.rollout_memory: expected a share from 0 to 1, got {self.rollout_memory}; "
                "null takes actor_rollout_ref.rollout.gpu_memory_utilization"
            )


@dataclass(frozen=True)
class SlipstreamConfig:
    """The whole ``slipstream`` node."""

    node_path: ClassVar[str] = "slipstream"

    weight_sync: WeightSyncConfig = field(default_factory=WeightSyncConfig)
    """How trained weights reach the rollout engines."""

    drafter: DrafterConfig = field(default_factory=DrafterConfig, kw_only=True)
    """What rollout engines draft from."""

    router: RouterConfig = field(default_factory=RouterConfig)
    """Who decides which rollout replica serves a request, and when."""

    placement: PlacementConfig = field(default_factory=PlacementConfig)
    """Whether runs that share a cluster take turns."""

    prometheus_port: int | None = field(default=None, metadata={"expected": "a port from 1 to 65535"})
    """TCP port at which the training loop's process serves the last step's metrics for Prometheus; None for nowhere."""

    events: str | None = field(default=AUTO_EVENTS, metadata={"expected": "auto, or a path"})
    """Path of the event log that the trainer's processes append to, or None for no log. ``auto``: ``slipstream.jsonl``
    in the folder that the framework keeps for the run. A framework's adapter makes it absolute where the run is
    started; missing folders are made."""

    def __post_init__(self) -> None:
        convert_fields(self)
        if self.prometheus_port is not None and not 1 <= self.prometheus_port <= 65535:
            raise ConfigError(
                f"{self.node_path}.prometheus_port: expected a port from 1 to 65535, got {self.prometheus_port}; "
                "null serves none"
            )
