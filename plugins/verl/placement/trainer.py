"""verl's trainers with the arbiter between their stages.

A rollout lease begins with the sync that wakes the engines and ends when verl has put them to sleep; a gang lease is
held for each stage of the trainer. In between the run holds nothing: its engines sleep, its trainer is offloaded.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

from slipstream.core.config import RUN_NONCE, SlipstreamConfig
from slipstream.core.graph import Lane, LongestPathFirst
from slipstream.core.graph.arbiter_actor import ArbiterClient, start_arbiter
from slipstream.core.graph.holder import LeaseHolder, Waited
from slipstream.core.telemetry import event_log
from slipstream.plugins.verl.placement.devices import devices_of, workers_of
from slipstream.plugins.verl.placement.overlap import (
    FinishedGroups,
    rows_at_a_time,
    rows_of,
    watch,
    whole_metrics,
)
from slipstream.plugins.verl.placement.records import StageClock, StepRecords

_logger = logging.getLogger("slipstream")

_START_SECONDS = 120.0
"""That the process of the first arbiter may take to start."""


class Placement:
    """The leases of one run, and what its stages took."""

    def __init__(self, slipstream: SlipstreamConfig, config: Any) -> None:
        """Prepare; nothing is asked before the devices are known.

        Args:
            config: verl's.
        """
        settings = slipstream.placement
        self.settings, self._slipstream = settings, slipstream
        nonce = os.environ.get(RUN_NONCE, "")[:6]
        self.name = settings.name or f"{config.trainer.project_name}/{config.trainer.experiment_name}-{nonce}"
        engine = config.actor_rollout_ref.rollout.gpu_memory_utilization
        self.rollout_memory = float(engine) if settings.rollout_memory is None else settings.rollout_memory
        self.step, self.steps = 0, 0
        self._holder: LeaseHolder | None = None
        self._records: StepRecords | None = None
        self._rollout: tuple[StageClock, Waited] | None = None
        self._start: contextlib.ExitStack | None = None
        self._waited: dict[str, float] = {}
        self._warned = False

    def devices_found(self, devices: list[tuple[str, str]]) -> None:
        """Connect to the arbiter, and wait for all of the devices to start processes on."""
        lease = self.settings.lease_seconds

        def connect(quiet_seconds: float = lease / 2) -> Any:  # who held leases of a dead one is adopted first
            return start_arbiter(lease_seconds=lease, advisor=LongestPathFirst(), quiet_seconds=quiet_seconds)

        client = ArbiterClient(connect(0.0), timeout_seconds=self.settings.wait_seconds, reconnect=connect)
        if not client.wait_ready(_START_SECONDS):
            _logger.warning("slipstream: the arbiter does not start, so this run takes its GPUs for its own")
        self._holder = LeaseHolder(client, self.name, workers_of(devices), renew_seconds=lease / 4)
        self._records = StepRecords(self.name, devices, event_log(self._slipstream))
        self._start = contextlib.ExitStack()
        self._start.enter_context(self.gang("start", memory=1.0))

    def started(self) -> None:
        """Give back what was needed to start."""
        if self._start is not None:
            self._start.close()
            self._start = None

    @contextlib.contextmanager
    def gang(self, stage: str, memory: float | None = None) -> Iterator[None]:
        """Hold all devices for a stage of the trainer."""
        if self._holder is None or self._records is None:
            yield
            return
        # A stage within a stage, or verl's validation, which puts the engines to sleep for a stage: asking for a second
        # lease while holding one could wait for itself.
        if self._holder.holds(Lane.GANG) or self._holder.holds(Lane.ROLLOUT):
            yield
            return
        waited = self._acquire(Lane.GANG, stage, self.settings.train_memory if memory is None else memory)
        clock = StageClock()
        try:
            yield
        finally:
            self._records.stage(stage, self.step, clock.began, clock.seconds, waited.seconds)
            self._holder.release(Lane.GANG)

    @contextlib.contextmanager
    def spare(self, stage: str) -> Iterator[bool]:
        """Hold all devices for a stage beside this run's own rollout, if nobody has to wait for it and both fit."""
        fits = self.rollout_memory + self.settings.train_memory <= 1.0
        if self._holder is None or self._records is None or not fits:
            yield False
            return
        if not self._holder.try_acquire(Lane.GANG, stage, self.settings.train_memory):
            yield False
            return
        clock = StageClock()
        try:
            yield True
        finally:
            self._records.stage(f"{stage}_beside_rollout", self.step, clock.began, clock.seconds, 0.0)
            self._holder.release(Lane.GANG)

    def begin_rollout(self) -> None:
        """Wait for all devices for the engines, which are synced next."""
        if self._holder is not None and not self._holder.holds(Lane.ROLLOUT):
            waited = self._acquire(Lane.ROLLOUT, "rollout", self.rollout_memory)
            self._rollout = (StageClock(), waited)

    def synced(self, clock: StageClock) -> None:
        """Note that the engines have their weights: the sync was the first part of the rollout's lease."""
        if self._records is not None:
            self._records.stage("update_weights", self.step, clock.began, clock.seconds, 0.0)
            if self._rollout is not None:
                self._rollout = (StageClock(), self._rollout[1])

    def end_rollout(self) -> None:
        """The engines sleep."""
        if self._holder is None or self._records is None:
            return
        if self._rollout is not None:
            clock, waited = self._rollout
            self._records.stage("rollout", self.step, clock.began, clock.seconds, waited.seconds)
            self._rollout = None
        self._holder.release(Lane.ROLLOUT)

    def sampled(self, batch: Any) -> None:
        """Note what a rollout made."""
        if self._records is not None:
            self._records.lengths(batch.tags)

    def end_step(self) -> dict[str, float]:
        """Return the metrics of the step, and warn where the arbiter was not asked at all."""
        if self._holder is None or self._records is None:
            metrics: dict[str, float] = {}
        else:
            metrics = self._records.end_step(self.step)
            metrics |= {f"{lane}_wait_seconds": seconds for lane, seconds in self._waited.items()}
            metrics |= {name: float(count) for name, count in self._holder.counts.items()}
            self._waited.clear()
            self._holder.counts.clear()
        if not self._warned and not metrics.get("granted"):
            self._warned = True
            _logger.warning(
                "slipstream: no stage of this step was granted by an arbiter, so slipstream/placement=graph has no "
                "effect; either the trainer does not call verl's stages, or the arbiter cannot be reached (see above)"
            )
        return {f"slipstream/placement/{name}": value for name, value in metrics.items()}

    def close(self) -> None:
        """Give everything back, however the run ends."""
        self.started()
        if self._holder is not None:
            self._holder.close()
            self._holder = None

    def _acquire(self, lane: Lane, kind: str, memory: float) -> Waited:
        assert self._holder is not None
        assert self._records is not None
        remaining = self._records.remaining(max(0, self.steps - self.step + 1))
        waited = self._holder.acquire(lane, kind, memory, remaining)
        self._waited[lane.value] = self._waited.get(lane.value, 0.0) + waited.seconds
        return waited


_GANGS = {
    "_compute_reward_colocate": "reward",
    "_compute_old_log_prob": "old_log_prob",
    "_compute_ref_log_prob": "ref",
    "_compute_values": "values",
    "_update_critic": "update_critic",
    "_update_actor": "update_actor",
    "_save_checkpoint": "save_checkpoint",
}
"""verl's stages that need the trainer's processes. The advantage does not: verl computes it in the driver."""


def with_placement(get_trainer_cls: Callable[[str], type], config: SlipstreamConfig) -> Callable[[str], type]:
    """Wrap verl's `get_trainer_cls`: every registered trainer gets the arbiter between its stages."""

    @functools.wraps(get_trainer_cls)
    def get(name: str) -> type:
        return placed(get_trainer_cls(name), config)

    return get


def placed(trainer: Any, slipstream: SlipstreamConfig) -> type:
    """Return verl's trainer class with the arbiter between its stages."""

    class PlacedTrainer(trainer):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.slipstream_placement = Placement(slipstream, config)

        def init(self) -> None:
            try:
                super().init()
            except BaseException:
                self.slipstream_placement.close()
                raise

        def _init_resource_pool_mgr(self) -> None:
            super()._init_resource_pool_mgr()
            manager, create = self.resource_pool_manager, self.resource_pool_manager.create_resource_pool

            def create_resource_pool() -> None:
                create()
                pools = list(manager.resource_pool_dict.values())
                self.slipstream_placement.devices_found(devices_of(pools, self.config.trainer.device))

            manager.create_resource_pool = create_resource_pool

        def on_init_end(self) -> None:
            """verl starts its agent loops next: the sync, which wakes the engines, waits until they have work."""
            placement = self.slipstream_placement
            placement.started()
            placement.step, placement.steps = self.global_steps, self.total_training_steps

        def fit(self, agent_loop_manager: Any) -> None:
            try:
                self._slipstream_sync(super().on_init_end)
                super().fit(agent_loop_manager)
            finally:
                self.slipstream_placement.close()

        def on_step_begin(self) -> None:
            self.slipstream_placement.step = self.global_steps
            super().on_step_begin()

        def on_sample_end(self) -> None:
            super().on_sample_end()
            self.slipstream_placement.end_rollout()

        if slipstream.placement.overlap:

            def on_train_begin(self) -> None:
                super().on_train_begin()
                self.slipstream_finished = FinishedGroups(rows_at_a_time(self), self._slipstream_log_probs)
                watch(self.replay_buffer, self._slipstream_look)

            def _slipstream_look(self, buffer: Any) -> None:
                """In verl's loop that waits for the rollout, which would sleep now."""
                ended = buffer.finished_keys["train"]
                finished = [uid for uid in buffer.prompt_global_steps["train"] if uid in ended]
                self.slipstream_finished.look(finished, buffer.partitions["train"])

            def _slipstream_log_probs(self, keys: list[str], tags: list[dict[str, Any]]) -> bool:
                from transfer_queue import KVBatchMeta

                with self.slipstream_placement.spare("old_log_prob") as granted:
                    if granted:
                        batch = KVBatchMeta(partition_id="train", keys=keys, tags=tags, extra_info={})
                        super()._compute_old_log_prob(batch, {})
                return granted

            def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
                places = self.slipstream_finished.left(batch.keys)
                if len(places) == len(batch.keys):
                    return super()._compute_old_log_prob(batch, metrics)
                metrics["slipstream/placement/overlapped_rows"] = len(batch.keys) - len(places)
                if places:
                    super()._compute_old_log_prob(rows_of(batch, places), {})
                metrics.update(whole_metrics(self, batch))
                return batch

        def _balance_batch(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
            self.slipstream_placement.sampled(batch)
            return super()._balance_batch(batch, *args, **kwargs)

        def on_step_end(self) -> None:
            self._slipstream_sync(super().on_step_end)

        def _slipstream_sync(self, sync: Callable[[], None]) -> None:
            """The sync wakes the engines, so it waits until they may run."""
            self.slipstream_placement.begin_rollout()
            clock = StageClock()
            sync()
            self.slipstream_placement.synced(clock)

        def _consume_sync_metrics(self) -> dict[str, Any]:
            return {**super()._consume_sync_metrics(), **self.slipstream_placement.end_step()}

    for method, stage in _GANGS.items():
        setattr(PlacedTrainer, method, _in_gang(getattr(PlacedTrainer, method), stage))
    PlacedTrainer.__name__ = PlacedTrainer.__qualname__ = f"Placed{trainer.__name__}"
    return PlacedTrainer


def _in_gang(method: Callable[..., Any], stage: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.slipstream_placement.gang(stage):
            return method(self, *args, **kwargs)

    return run
