"""Old log-probabilities of prompt groups that have ended, while the rest of the rollout goes on.

verl waits for the whole batch, and its trainer idles. Here the trainer works on finished groups whenever verl's replay
buffer would sleep until its next look. Nothing else changes: the same rows, under the same weights, in micro-batches of
the same size, kept where verl keeps them (TransferQueue); the stage itself then computes what is left.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class FinishedGroups:
    """Which rows of the present rollout have their log-probabilities already."""

    def __init__(self, rows: int, compute: Callable[[list[str], list[dict[str, Any]]], bool]) -> None:
        """Start with nothing.

        Args:
            rows: whole micro-batches of all ranks: as many rows, or a multiple, are computed at a time.
            compute: given keys and tags, computes them; false where it may not now.
        """
        self._rows, self._compute = rows, compute
        self.done: set[str] = set()

    def look(self, finished: list[str], partition: dict[str, dict[str, Any]]) -> None:
        """Compute what has ended since the last look.

        Args:
            finished: uids of prompt groups, in the order of the batch.
            partition: tags by row.
        """
        order = {uid: place for place, uid in enumerate(finished)}
        keys = sorted(
            (key for key in partition if key.split("_")[0] in order and key not in self.done),
            key=lambda key: (order[key.split("_")[0]], *map(int, key.split("_")[1:])),
        )
        keys = keys[: len(keys) - len(keys) % self._rows]
        if keys and self._compute(keys, [partition[key] for key in keys]):
            self.done.update(keys)

    def left(self, keys: list[str]) -> list[int]:
        """Return the places of the rows that have to be computed still, and forget the rollout.

        Done are whole micro-batches or nothing, so that what is left can be cut into them as well.
        """
        places = [place for place, key in enumerate(keys) if key not in self.done]
        self.done.clear()
        return places if len(places) % self._rows == 0 else list(range(len(keys)))


def rows_at_a_time(trainer: Any) -> int:
    """Return how many rows verl's trainer computes log-probabilities of at a time, over all ranks."""
    group = trainer.actor_rollout_wg
    if "actor" not in group._dispatch_info:
        group._dispatch_info["actor"] = group._query_dispatch_info("actor")
    ranks = max(group._dispatch_info["actor"]) + 1
    rollout = trainer.config.actor_rollout_ref.rollout
    if rollout.get("log_prob_use_dynamic_bsz", False):
        return int(ranks)
    return int(ranks) * int(rollout.log_prob_micro_batch_size_per_gpu)


def watch(buffer: Any, look: Callable[[Any], None]) -> None:
    """Call `look(buffer)` whenever verl's replay buffer has looked in vain for a training batch, in place."""
    wait = buffer._wait_for_next_poll

    @functools.wraps(wait)
    def watched(partition_id: str, last_debug_time: float) -> float:
        if partition_id == "train":
            look(buffer)
        return float(wait(partition_id, last_debug_time))

    buffer._wait_for_next_poll = watched


def whole_metrics(trainer: Any, batch: Any) -> dict[str, Any]:
    """Return what verl logs of the stage, over all rows: it has seen those that were left only."""
    import transfer_queue as tq

    from verl.protocol import DataProto
    from verl.trainer.ppo.core_algos import agg_loss
    from verl.utils.debug.metrics import calculate_debug_metrics

    rollout = trainer.config.actor_rollout_ref.rollout
    fields = ["entropy", "old_log_probs", "response_mask"]
    if rollout.calculate_log_probs:
        fields += ["responses", "rollout_log_probs"]
    found = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
    data = DataProto(batch=found.to_padded_tensor())
    actor = trainer.config.actor_rollout_ref.actor
    entropy = agg_loss(
        loss_mat=data.batch["entropy"],
        loss_mask=data.batch["response_mask"],
        loss_agg_mode=actor.loss_agg_mode,
        loss_scale_factor=actor.loss_scale_factor,
    )
    metrics: dict[str, Any] = {"actor/entropy": entropy.detach().item()}
    if rollout.calculate_log_probs:
        metrics |= calculate_debug_metrics(data)
    return metrics


def rows_of(batch: Any, places: list[int]) -> Any:
    """Return some rows of verl's batch."""
    from transfer_queue import KVBatchMeta

    return KVBatchMeta(
        partition_id=batch.partition_id,
        keys=[batch.keys[place] for place in places],
        tags=[batch.tags[place] for place in places],
        extra_info=dict(batch.extra_info),
    )
