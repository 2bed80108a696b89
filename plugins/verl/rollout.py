"""verl's vLLM server adapter with weight sync through slipstream; trainer and checkpoint-engine processes have it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ray
import torch

from slipstream.plugins.verl.driver import RUN_NONCE
from slipstream.plugins.verl.publishing import VerlPublisher
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

WIRE_FORMAT = "slipstream"
"""`wire_format` under which the checkpoint engine hands over an endpoint instead of tensors."""


@dataclass(frozen=True)
class RemoteUpdate:
    """The weights of a disaggregated sync: where the engine's workers fetch them."""

    endpoint: str
    timeout: float


class SlipstreamServerAdapter(ServerAdapter):
    """Colocated: publishes this trainer rank's weights to its own engine worker. Disaggregated: calls the engine."""

    _publisher: VerlPublisher | None = None

    async def update_weights(  # type: ignore[override]
        self,
        weights: Iterable[tuple[str, torch.Tensor]] | RemoteUpdate,
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        **kwargs: Any,
    ) -> Any:
        """See verl's `ServerAdapter.update_weights`. LoRA adapters keep verl's own path: they are small already."""
        if isinstance(weights, RemoteUpdate):
            await self._sync_workers(weights.endpoint, weights.timeout)
        elif wire_format != "named_tensors" or kwargs.get("peft_config") is not None:
            native: Any = super().update_weights
            return await native(weights, global_steps=global_steps, wire_format=wire_format, **kwargs)
        else:
            await self._publish(weights, global_steps)
        if self._has_server:
            await self.server_handle.clear_kv_cache.remote()
            if global_steps is not None:
                await self.server_handle.set_global_steps.remote(global_steps)
        return None

    async def _publish(self, weights: Iterable[tuple[str, torch.Tensor]], step: int | None) -> None:
        if self._publisher is None:
            self._publisher = VerlPublisher()
        template = self._endpoint_template()
        try:
            channel = self._publisher.open(template.format(local_rank=self._local_rank()))
        except BaseException:
            for _ in weights:  # collectives: the other ranks wait in them
                pass
            _all_ranks(False)
            raise
        try:
            await self._publisher.publish(
                weights,
                channel,
                workers=1,
                call_engine=lambda: self._sync_workers(template, self._publisher.timeout),  # type: ignore[union-attr]
                step=step,
                agree=_all_ranks,
                log=self.replica_rank == 0 and self.rollout_rank == 0,
            )
        finally:
            channel.close()

    async def _sync_workers(self, endpoint: str, timeout: float) -> None:
        """Make every worker of this replica take part; a no-op on ranks that do not own the server."""
        if self._ensure_server_handle():
            await self.server_handle.slipstream_sync.remote(endpoint=endpoint, timeout=timeout)

    def _local_rank(self) -> int:
        return int(self.rollout_rank) % int(os.environ["RAY_LOCAL_WORLD_SIZE"])

    def _endpoint_template(self) -> str:
        # Ray's job ids start anew in every cluster, so two runs on one node may share them: hence the run id.
        run = os.environ.get(RUN_NONCE, "")[:12] or ray.get_runtime_context().get_job_id()
        name = f"slipstream-{run}-{self.replica_rank}-{{local_rank}}.sock"
        return f"ipc://{os.path.join(tempfile.gettempdir(), name)}"


def _all_ranks(ready: bool) -> bool:
    """Whether every trainer rank is ready: one collective, so that no rank commits while another has failed."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return ready
    flag = torch.tensor([int(ready)])
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MIN)
    return bool(flag.item())
