"""A publisher as a framework's trainer processes use it: settings from the node, metrics and events afterwards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol, TypeVar

import torch

from slipstream.core.config import SlipstreamConfig, from_environment
from slipstream.core.hooks import WeightSyncFinished, WeightSyncStarted, plugins
from slipstream.core.telemetry import ChainWritten, WeightSync, event_log
from slipstream.core.weights.chain import ChainMirror, MirrorReport
from slipstream.core.weights.channel import PublisherChannel
from slipstream.core.weights.errors import SyncError, SyncTimeoutError
from slipstream.core.weights.publisher import Agree, Publisher
from slipstream.core.weights.trainer_shards import TrainerShards
from slipstream.core.weights.transports import PublisherEndpoint, bind
from slipstream.core.weights.update import PublisherSettings, SyncReport, Update, merged_layers

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

last_metrics: dict[str, float] = {}
"""Metrics of this process's last sync, for the trainer's tracker."""
_chain_taken = False
"""Whether a stream of weights of this process writes the chain."""


def publisher_settings(config: SlipstreamConfig) -> PublisherSettings:
    """Translate the `slipstream.weight_sync` node."""
    sync = config.weight_sync
    return PublisherSettings(
        timeout=sync.timeout_seconds,
        level=None if sync.level == "auto" else sync.level,
        chunk_bytes=sync.chunk_megabytes << 20,
        audit_every=sync.audit_every,
        verify_every=sync.verify_every,
        dense=sync.mode == "dense",
        keep_on_device=sync.snapshot == "device",
        history_share=sync.history_share,
    )


def sync_timeout() -> float:
    """Seconds that this run waits for each message."""
    config = from_environment()
    assert config is not None, "registered only in runs that carry the node"
    return config.weight_sync.timeout_seconds


class ShardSource(Protocol):
    """A training engine that shows what each rank holds."""

    in_use: bool
    """Set when weights are published from here."""

    def obstacle(self) -> str:
        """Why weights have to be gathered all the same; empty when they need not."""

    def tensors(self) -> Iterable[tuple[str, torch.Tensor]]:
        """(name, flat local tensor)."""

    def exchange(self) -> TrainerShards:
        """Tell the other ranks what this one holds; a collective."""


class RunPublisher:
    """One stream of weights out of this trainer process."""

    def __init__(self, shards: ShardSource | None = None) -> None:
        """Start without an acknowledged version.

        Args:
            shards: where this rank's own part of the weights comes from; used unless the configuration or the training
                engine want them gathered.
        """
        config = from_environment()
        assert config is not None, "registered only in runs that carry the node"
        self._config = config
        self._events = event_log(config)
        self.shards = shards if shards is not None and self._may_shard(shards) else None
        """Set when every trainer rank publishes its own shards."""
        if self.shards is not None:
            self.shards.in_use = True
        self._built: Publisher | None = None
        self._ends: dict[str, PublisherEndpoint] = {}
        self._chain: ChainMirror | None = None
        self._chain_failures = 0

    def _may_shard(self, shards: ShardSource) -> bool:
        sync = self._config.weight_sync
        if sync.senders == "one" or not _several_ranks():
            return False
        if sync.chain is not None:
            obstacle = "slipstream.weight_sync.chain is written by one rank, from whole tensors"
        else:
            obstacle = shards.obstacle()
        if obstacle and torch.distributed.get_rank() == 0:
            # A warning: processes of a run do not show what is logged as information.
            logger.warning("weights are gathered before they are sent: %s", obstacle)
        return not obstacle

    @property
    def _publisher(self) -> Publisher:
        if self._built is None:
            held = None if self.shards is None else self.shards.exchange()
            self._built = Publisher(publisher_settings(self._config), held)
        return self._built

    @property
    def timeout(self) -> float:
        """Seconds to wait for each message."""
        return sync_timeout()

    def open(self, endpoint: str, same_host: bool) -> PublisherEndpoint:
        """The end at `endpoint`, bound by the first call and kept for the life of the process.

        Args:
            endpoint: `ipc://...` or `tcp://...`.
            same_host: whether all engine workers that will connect are on this host.

        Raises:
            Exception: the configured transport cannot be used here, or the address cannot be bound.
        """
        if endpoint not in self._ends:
            self._ends[endpoint] = bind(self._config.weight_sync.transport, endpoint, same_host, self.timeout)
        return self._ends[endpoint]

    def shared(self, endpoint: str, same_host: bool) -> tuple[PublisherEndpoint, list[str]]:
        """Open an end on every trainer rank for one sync; return this rank's and the addresses of all. A collective.

        Raises:
            SyncError: another rank could not open its end.
        """
        end, failure = None, None
        try:
            end = self.open(endpoint, same_host)
        except Exception as error:
            failure = error
        addresses: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(addresses, end.invite() if end is not None else "")
        if failure is not None:
            raise failure
        if end is None or not all(addresses):
            raise SyncError("another trainer rank could not open its address; its own error says why")
        return end, addresses

    async def publish(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        channel: PublisherChannel,
        workers: int,
        call_engine: Callable[[], Awaitable[Any]],
        step: int | None,
        agree: Callable[[bool], bool],
        log: bool,
    ) -> dict[str, float]:
        """Stage `weights`, have the engine connect, deliver, and return metrics.

        Args:
            weights: gathered tensors, consumed in this thread, since its items are collectives of the trainer's ranks;
                not looked at when this rank publishes its shards.
            channel: the workers connect to it.
            workers: engine workers that will connect.
            call_engine: starts the workers' side; its failure ends the sync with the engine's error.
            step: trainer step, for the event log.
            agree: see `Publisher.deliver`; also called once after staging, so that no rank waits for engine workers
                that nobody will call.
            log: whether this rank writes the event.

        Raises:
            SyncError: another rank could not stage its weights.
            Exception: see `Publisher.stage` and `Publisher.deliver`.
        """
        waited = self._chain.wait() if self._chain is not None else 0.0
        try:
            update = self._publisher.stage(weights if self.shards is None else self.shards.tensors())
            if log:
                started = WeightSyncStarted(f"{self._publisher.run:x}", self._publisher.acked, update.target, workers)
                plugins().hook.slipstream_before_weight_sync(event=started)
        except BaseException as error:
            agree(False)
            self._publisher.refuse(channel, workers, f"{type(error).__name__}: {error}")
            raise
        if not agree(True):
            raise SyncError(
                "another trainer rank could not stage its weights; its own error says why. All engines keep their old "
                "weights."
            )
        engine = asyncio.ensure_future(call_engine())
        engine.add_done_callback(lambda task: _report_failure(task, channel))
        try:
            report = await asyncio.to_thread(self._deliver, update, channel, workers, agree)
        except SyncTimeoutError as error:  # vLLM may notice later than this that a worker has died
            raise SyncTimeoutError(f"{error}; if one of the engine's workers died, its log above says why") from error
        await answer(engine, self.timeout, "the engine's workers hold the update, but their call")
        if log:
            self._events.write(WeightSync(step=step, **asdict(report)))
            plugins().hook.slipstream_after_weight_sync(event=_finished(report))
        last_metrics.clear()
        last_metrics.update(sync_metrics(report))
        if log and self._chain is None:
            self._chain = self._claimed_chain()
        if self._chain is not None:
            self._chain.follow(self._publisher)
            last_metrics["slipstream/weight_sync/chain_wait_seconds"] = waited
            last_metrics["slipstream/weight_sync/chain_failures"] = self._chain_failures
        return dict(last_metrics)

    def _claimed_chain(self) -> ChainMirror | None:
        """The chain of this run, for the first stream of weights that asks: several would replace each other's."""
        global _chain_taken
        sync = self._config.weight_sync
        if sync.chain is None or _chain_taken:
            return None
        _chain_taken = True
        return ChainMirror(sync.chain, self._note_chain, level=0 if sync.level == "auto" else sync.level)

    def _note_chain(self, report: MirrorReport) -> None:
        self._chain_failures += bool(report.error)
        self._events.write(ChainWritten(**asdict(report)))

    def _deliver(self, update: Update, channel: PublisherChannel, workers: int, agree: Agree) -> SyncReport:
        """Deliver; with several publishing ranks, report what all of them did together."""
        verdicts: list[bool] = []

        def noted(ready: bool) -> bool:
            verdicts.append(agree(ready))
            return verdicts[-1]

        report = None
        try:
            report = self._publisher.deliver(update, channel, workers, noted)
        finally:
            # Once the ranks have agreed all of them get here, whatever happens to one of them afterwards.
            reports = _gathered(report) if self.shards is not None and verdicts == [True] else [report]
        return together([each for each in reports if each is not None])


async def answer(call: Awaitable[_T], timeout: float, what: str) -> _T:
    """The result of a call to the engine that should come at once.

    Raises:
        SyncTimeoutError: it does not come within `timeout` seconds.
        Exception: what the call raises.
    """
    try:
        return await asyncio.wait_for(call, timeout)
    except asyncio.TimeoutError as error:
        raise SyncTimeoutError(
            f"{what} did not return within {timeout:g} s (slipstream.weight_sync.timeout_seconds); is the engine alive?"
        ) from error


def all_ranks(ready: bool) -> bool:
    """Whether every trainer rank is ready: one collective, so that no rank commits while another has failed."""
    if not _several_ranks():
        return ready
    flag = torch.tensor([int(ready)])
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MIN)
    return bool(flag.item())


def _several_ranks() -> bool:
    return torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1


def _gathered(report: SyncReport | None) -> list[SyncReport | None]:
    reports: list[SyncReport | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(reports, report)
    return reports


def together(reports: Sequence[SyncReport]) -> SyncReport:
    """One report for the ranks of a trainer: amounts added up, times of the slowest."""
    total = reports[0]
    for report in reports[1:]:
        added = {name: getattr(total, name) + getattr(report, name) for name in _ADD_UP}
        slowest = {name: max(getattr(total, name), getattr(report, name)) for name in _LARGEST}
        total = replace(total, **added, **slowest, layers=merged_layers(total.layers, report.layers))
    return total


_ADD_UP = ("payload_bytes", "dense_bytes", "changed_elements", "total_elements")
_LARGEST = (
    "stage_seconds",
    "deliver_seconds",
    "apply_seconds",
    "audit_seconds",
    "seeded_workers",
    "late_workers",
    "level",
)


def sync_metrics(report: SyncReport) -> dict[str, float]:
    """What goes into the tracker, under `slipstream/weight_sync/`."""
    seconds = report.stage_seconds + report.deliver_seconds
    values = {
        "version": report.target,
        "seconds": seconds,
        "stage_seconds": report.stage_seconds,
        "deliver_seconds": report.deliver_seconds,
        "apply_seconds": report.apply_seconds,
        "payload_mbytes": report.payload_bytes / 1e6,
        "dense_mbytes": report.dense_bytes / 1e6,
        "changed_share": report.changed_elements / max(1, report.total_elements),
        "seeded_workers": report.seeded_workers,
        "late_workers": report.late_workers,
        "level": report.level,
        "audit_seconds": report.audit_seconds,
        "unverified_tensors": report.unverified_tensors,
    }
    return {f"slipstream/weight_sync/{key}": float(value) for key, value in values.items()}


def _finished(report: SyncReport) -> WeightSyncFinished:
    return WeightSyncFinished(
        run_id=f"{report.run:x}",
        base_version=report.base,
        target_version=report.target,
        workers=report.workers,
        tensors=report.tensors,
        total_elements=report.total_elements,
        changed_elements=report.changed_elements,
        payload_bytes=report.payload_bytes,
        dense_bytes=report.dense_bytes,
        seconds=report.stage_seconds + report.deliver_seconds,
        verified=report.unverified_tensors == 0 or report.audited_tensors > 0,
    )


def _report_failure(task: asyncio.Future[Any], channel: PublisherChannel) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        channel.fail(error)
