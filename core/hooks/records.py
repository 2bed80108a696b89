"""The records that provider hooks return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slipstream.core.config import SlipstreamConfig
from slipstream.core.seams import SeamTable


@dataclass(frozen=True)
class Codec:
    """Turns the changes of a tensor into bytes and back."""

    name: str
    """Unique among codecs."""

    level: int
    """The number that ``slipstream.weight_sync.level`` selects it by; a higher level is smaller and slower."""

    encoder: Callable[[], Any]
    """Makes what encodes the units of one link: `encode(old, positions, values)` returns uint8[size], empty for no
    change; `finish()` is called after the last unit of each sync. `old` is an `OldValues` of `core.weights.wire`."""

    decode: Callable[..., Any]
    """`decode(data, old)` returns (positions, values); a `ValueError` for what no encoder writes."""

    unpack: Callable[..., Any] | None = None
    """`unpack(data, old)` returns the same as `PackedChanges` of `triton_kernels`, in half the bytes, for a unit on the
    host; errors as of `decode`. New values may depend on what is in memory when they are written. None: no such form.
    """

    unpack_all: Callable[..., Any] | None = None
    """`unpack_all(data, sections, olds)` does that for several units of one width at once, into `PackedUnits`: section
    i is the `sections[i, 1]` bytes from `sections[i, 0]` on. It may leave out some at the end, to be asked for again.
    After a `ValueError` they are unpacked singly."""

    dtypes: frozenset[str] | None = None
    """Wire dtypes that it codes; None for any."""

    on_device: bool = False
    """Whether it also encodes changes that are on an accelerator (as tensors), and decodes an `Uploaded` payload there.
    One that does not is given numpy arrays, whatever that copies."""


@dataclass(frozen=True)
class Transport:
    """Carries frames from the trainer to the engine workers."""

    name: str
    """Unique among transports; a value of ``slipstream.weight_sync.transport``."""

    open: Callable[..., Any]
    """Opens one end of a link: ``open("publisher" or "subscriber", endpoint, timeout)`` returns a `PublisherEndpoint`
    or a `SubscriberEndpoint` of `core.weights.transports`. The publisher's end hands out addresses that name it."""


@dataclass(frozen=True)
class Drafter:
    """Proposes tokens for speculative decoding."""

    name: str
    """Unique among drafters; a value of ``slipstream.drafter.mode``."""

    factory: Callable[..., Any]
    """Builds the drafter of one engine replica: ``factory(DrafterConfig, max_model_len=int)`` returns what offers the
    methods of `core.drafter.SuffixDrafter`."""


@dataclass(frozen=True)
class RoutingPolicy:
    """Decides which replica serves a request, and when."""

    name: str
    """Unique among routing policies; a value of ``slipstream.router.mode``."""

    factory: Callable[..., Any]
    """Builds the policy of one run: ``factory(RouterSettings)`` returns a `core.rollout.policy.RoutingPolicyLike`,
    which under verl has what else `CacheAwareRouter` offers."""


@dataclass(frozen=True)
class Scheduler:
    """Decides which stage runs on which workers."""

    name: str
    """Unique among schedulers; the value of ``slipstream/placement``."""

    factory: Callable[..., Any]
    """Builds the scheduler of one cluster."""


@dataclass(frozen=True)
class Engine:
    """A rollout engine that slipstream has an adapter for."""

    name: str
    """Unique among engines, for example ``"vllm"``."""

    distribution: str | tuple[str, ...]
    """The distribution it is installed as; several when builds are published under different names."""

    seams: Callable[[], SeamTable]
    """Returns the adapter's seam table; must not import the engine."""


@dataclass(frozen=True)
class Framework:
    """A training framework that slipstream has an adapter for."""

    name: str
    """Unique among frameworks, for example ``"verl"``."""

    distribution: str | tuple[str, ...]
    """The distribution it is installed as; several when builds are published under different names."""

    seams: Callable[[], SeamTable]
    """Returns the adapter's seam table; must not import the framework."""

    demo: Callable[..., int | None] | None = None
    """Runs ``slipstream demo``: called with ``model`` (a name, a path or None) and ``arguments`` (a list with the
    rest of the command line); returns the exit status. None when the adapter has no demo."""

    hydra_config: str | None = None
    """The framework's primary Hydra config as ``"package:name"``, for example ``"verl.trainer.config:ppo_trainer"``;
    ``slipstream config`` composes it. None when the framework does not use Hydra."""

    check_config: Callable[[Any, SlipstreamConfig], None] | None = None
    """What the framework's run checks before it starts, for ``slipstream config`` to check as well: called with the
    whole composed config and its parsed ``slipstream`` node, raises ``ConfigError`` for what the run would refuse; must
    not import the framework. None when the adapter refuses nothing."""

    read_metrics: Callable[[Any], Any] | None = None
    """Reads runs without slipstream for ``slipstream report``: called with one decoded line of the framework's own
    metrics file, returns a ``StepFinished`` of `core.telemetry`, or None for a line that is no step; must not import
    the framework. None when it writes no such file."""
