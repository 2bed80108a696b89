"""Replay buffers for short steps that must be repeatable; named by ``trainer.v1.sampler.custom_sampler``.

Two differences from verl's own, through the seam verl provides for this:

- They look for finished samples every 20 ms. verl's constructor default of 2 s, which its trainer gives no way to
  change, would make a rollout of 0.3 s last 2 s.
- A batch is in the order in which its prompts were submitted, not in the order in which they finished, so the sums
  of the training step add up in the same order in every run.

verl passes no ``algorithm.filter_groups`` settings to a custom sampler, so DAPO filtering is off with these.
"""

from __future__ import annotations

from typing import Any

from transfer_queue import KVBatchMeta

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

__all__ = ["PromptReplayBuffer", "PromptReplayBufferAsync"]

POLL_SECONDS = 0.02


def _position(key: str) -> tuple[int, int]:
    """Return (sample, turn) of a trajectory key ``{uid}_{session}_{index}``."""
    _, session, index = key.rsplit("_", 2)
    return int(session), int(index)


class _Ordered:
    """Mixin: submission order instead of completion order."""

    prompt_global_steps: dict[str, dict[str, int]]

    def _rank(self, partition_id: str) -> dict[str, int]:
        # The controller lists prompts in the order in which they were registered.
        return {uid: position for position, uid in enumerate(self.prompt_global_steps[partition_id])}

    def _select_prompt_uids(self, partition_id: str, sampleable_keys: set[str], batch_size: int) -> Any:
        rank = self._rank(partition_id)
        ordered = sorted(sampleable_keys, key=lambda uid: rank.get(uid, len(rank)))
        # verl sorts these by age; its sort is stable.
        return super()._select_prompt_uids(partition_id, dict.fromkeys(ordered), batch_size)  # type: ignore[misc, unused-ignore]

    def _materialize_batch(
        self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, dict[str, Any]]
    ) -> KVBatchMeta:
        rank = self._rank(partition_id)
        ordered = sorted(
            partition_snapshot.items(),
            key=lambda item: (rank.get(item[0].split("_")[0], len(rank)), *_position(item[0])),
        )
        return super()._materialize_batch(partition_id, selected_prompt_uids, dict(ordered))  # type: ignore[misc, unused-ignore]


class PromptReplayBuffer(_Ordered, ReplayBuffer):  # type: ignore[misc, unused-ignore]
    """For ``trainer.v1.trainer_mode=sync``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"poll_interval": POLL_SECONDS, **kwargs})


class PromptReplayBufferAsync(_Ordered, ReplayBufferAsync):  # type: ignore[misc, unused-ignore]
    """For ``colocate_async`` and ``separate_async``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"poll_interval": POLL_SECONDS, **kwargs})
