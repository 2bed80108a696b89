"""verl's server adapter with weight sync through slipstream; trainer and checkpoint-engine processes have it.

`PublishingAdapter` knows no engine; `vllm_rollout` and `sglang_rollout` mix it into verl's own adapters.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from slipstream.core.weights.publishing import RunPublisher, ShardSource, all_ranks, answer, sync_timeout
from slipstream.core.weights.transports import Address
from slipstream.core.weights.transports.run_endpoints import node_address, run_socket

if TYPE_CHECKING:  # imports vLLM
    from slipstream.plugins.verl.adapters import Adapter

WIRE_FORMAT = "slipstream"
"""`wire_format` under which the checkpoint engine hands over an endpoint instead of tensors."""


@dataclass(frozen=True)
class RemoteUpdate:
    """The weights of a disaggregated sync: where the engine's workers fetch them."""

    endpoints: list[str]
    timeout: float


class PublishingAdapter:
    """Mixin for verl's server adapters.

    Colocated: publishes this trainer rank's weights. Disaggregated: calls the engine.

    Where the trainer shows its shards, every rank sends what it holds to all engine workers that need it; otherwise
    every rank gets the gathered tensors and sends them to its own worker.
    """

    _publisher: RunPublisher | None = None
    _adapter_publisher: RunPublisher | None = None
    _syncs = 0
    """Syncs that this rank began: the same number on all, so it names one for the workers of all."""
    slipstream_shards: ShardSource | None = None
    """Set by the worker that owns this adapter, on trainer ranks."""
    replica_rank: int
    rollout_rank: int

    async def _server(self) -> Any:
        """The actor of the engine's server, on the rank that calls it; None on all others."""
        raise NotImplementedError

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]] | RemoteUpdate,
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        **kwargs: Any,
    ) -> Any:
        """See verl's `ServerAdapter.update_weights`.

        A LoRA adapter is a stream of its own: the weights under it are seeded once, where the engine did not load them
        itself, and only the adapter's tensors travel from then on.
        """
        if isinstance(weights, RemoteUpdate):
            await self._sync_workers(weights.endpoints, weights.timeout)
        elif wire_format != "named_tensors":
            native: Any = super().update_weights  # type: ignore[misc]
            return await native(weights, global_steps=global_steps, wire_format=wire_format, **kwargs)
        elif kwargs.get("peft_config") is not None and kwargs.get("base_sync_done"):
            await self._publish_adapter(list(weights), kwargs["peft_config"], global_steps)
        else:
            await self._publish(weights, global_steps)
        if (server := await self._server()) is not None:
            timeout = sync_timeout()
            await answer(server.clear_kv_cache.remote(), timeout, "the engine's clear_kv_cache")
            if global_steps is not None:
                await answer(server.set_global_steps.remote(global_steps), timeout, "the engine's set_global_steps")
        return None

    async def _publish(self, weights: Iterable[tuple[str, torch.Tensor]], step: int | None) -> None:
        if self._publisher is None:
            self._publisher = RunPublisher(self.slipstream_shards)
        if self._publisher.shards is None:
            await self._publish_whole(self._publisher, weights, step)
        else:
            await self._publish_shards(self._publisher, step)

    async def _publish_adapter(
        self, weights: list[tuple[str, torch.Tensor]], config: dict[str, Any], step: int | None
    ) -> None:
        """verl has gathered the adapter on every rank."""
        from slipstream.plugins.verl.adapters import Adapter

        if self._adapter_publisher is None:
            self._adapter_publisher = RunPublisher()
        adapter = Adapter(config, tuple((name, tuple(tensor.shape)) for name, tensor in weights))
        await self._publish_whole(self._adapter_publisher, weights, step, adapter)

    async def _publish_whole(
        self,
        publisher: RunPublisher,
        weights: Iterable[tuple[str, torch.Tensor]],
        step: int | None,
        adapter: Adapter | None = None,
    ) -> None:
        """Every rank sends gathered tensors to the worker on its own GPU."""
        self._syncs += 1
        try:
            path = run_socket(f"{self.replica_rank}{'-adapter' if adapter is not None else ''}-{{local_rank}}")
            channel = publisher.open(f"ipc://{path.format(local_rank=self._local_rank())}", same_host=True)
            address = Address.parse(channel.invite(str(self._syncs)))._replace(endpoint=f"ipc://{path}")
        except BaseException:
            for _ in weights:  # collectives: the other ranks wait in them
                pass
            all_ranks(False)
            raise
        await publisher.publish(
            weights,
            channel,
            workers=1,
            call_engine=lambda: self._sync_workers([str(address)], publisher.timeout, adapter),
            step=step,
            agree=all_ranks,
            log=self.replica_rank == 0 and self.rollout_rank == 0,
        )

    async def _publish_shards(self, publisher: RunPublisher, step: int | None) -> None:
        """Every rank sends what it holds to all workers of all replicas."""
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        same_host = int(os.environ["RAY_LOCAL_WORLD_SIZE"]) == size
        endpoint = f"ipc://{run_socket(f'rank{rank}')}" if same_host else node_address()
        channel, addresses = publisher.shared(endpoint, same_host)
        await publisher.publish(
            (),
            channel,
            workers=size,
            call_engine=lambda: self._sync_workers(addresses, publisher.timeout),
            step=step,
            agree=all_ranks,
            log=rank == 0,
        )

    async def _sync_workers(self, endpoints: list[str], timeout: float, adapter: Adapter | None = None) -> None:
        """Make every worker of this replica take part; a no-op on ranks that do not own the server."""
        if (server := await self._server()) is not None:
            more = {} if adapter is None else {"adapter": adapter}
            await server.slipstream_sync.remote(endpoints=endpoints, timeout=timeout, **more)

    def _local_rank(self) -> int:
        return int(self.rollout_rank) % int(os.environ["RAY_LOCAL_WORLD_SIZE"])
