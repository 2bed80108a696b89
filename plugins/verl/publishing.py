"""A publisher as verl's trainer processes use it: settings from the node, metrics and events afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from typing import Any

import torch

from slipstream.core.config import SlipstreamConfig, from_environment
from slipstream.core.hooks import WeightSyncFinished, WeightSyncStarted, plugins
from slipstream.core.telemetry import event_log
from slipstream.core.weights import (
    Publisher,
    PublisherChannel,
    PublisherSettings,
    SyncError,
    SyncReport,
    ZmqPublisherChannel,
)

last_metrics: dict[str, float] = {}
"""Metrics of this process's last sync, for the trainer's tracker."""


def publisher_settings(config: SlipstreamConfig) -> PublisherSettings:
    """Translate the `slipstream.weight_sync` node."""
    sync = config.weight_sync
    return PublisherSettings(
        timeout=sync.timeout_seconds,
        level=sync.level,
        chunk_bytes=sync.chunk_megabytes << 20,
        audit_every=sync.audit_every,
        verify_every=sync.verify_every,
        dense=sync.mode == "dense",
        keep_on_device=sync.snapshot == "device",
    )


class VerlPublisher:
    """One stream of weights out of this trainer process."""

    def __init__(self) -> None:
        config = from_environment()
        assert config is not None, "registered only in runs that carry the node"
        self._config = config
        self._events = event_log(config)
        self._publisher = Publisher(publisher_settings(config))

    @property
    def timeout(self) -> float:
        """Seconds to wait for each message."""
        return self._config.weight_sync.timeout_seconds

    def open(self, endpoint: str) -> ZmqPublisherChannel:
        """Bind the endpoint that the engine workers of one sync connect to."""
        channel: ZmqPublisherChannel = plugins().transport("zeromq").open("publisher", endpoint, self.timeout)
        return channel

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
            weights: consumed in this thread, since its items are collectives of the trainer's ranks.
            channel: closed by the caller.
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
        try:
            update = self._publisher.stage(weights)
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
        report = await asyncio.to_thread(self._publisher.deliver, update, channel, workers, agree)
        await engine
        if log:
            self._events.emit("weight_sync", step=step, **asdict(report))
            plugins().hook.slipstream_after_weight_sync(event=_finished(report))
        last_metrics.clear()
        last_metrics.update(sync_metrics(report))
        return dict(last_metrics)


def sync_metrics(report: SyncReport) -> dict[str, float]:
    """What goes into the tracker, under `slipstream/weight_sync/`."""
    seconds = report.stage_seconds + report.deliver_seconds
    values = {
        "version": report.target,
        "seconds": seconds,
        "stage_seconds": report.stage_seconds,
        "deliver_seconds": report.deliver_seconds,
        "payload_mbytes": report.payload_bytes / 1e6,
        "dense_mbytes": report.dense_bytes / 1e6,
        "changed_share": report.changed_elements / max(1, report.total_elements),
        "seeded_workers": report.seeded_workers,
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
