"""The checkpoint engine `slipstream`: weight sync of verl's disaggregated trainers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from slipstream.core.weights import publishing
from slipstream.core.weights.publishing import RunPublisher, ShardSource, all_ranks
from slipstream.core.weights.transports import PublisherEndpoint
from slipstream.core.weights.transports.run_endpoints import node_address
from slipstream.plugins.verl.rollout import WIRE_FORMAT, RemoteUpdate
from verl.checkpoint_engine.base import CheckpointEngine


class SlipstreamCheckpointEngine(CheckpointEngine):
    """Trainer ranks publish over TCP; every engine worker connects to them directly.

    Where the trainer shows its shards, all ranks publish what they hold, otherwise rank 0 publishes gathered tensors.
    verl builds an engine in each trainer rank and one beside each rollout rank. The latter only passes the addresses
    on: the weights never go through the checkpoint-engine process.
    """

    wire_format = WIRE_FORMAT
    slipstream_shards: ShardSource | None = None
    """Set by the worker that owns this engine, on trainer ranks."""

    def __init__(self, bucket_size: int = 0, is_master: bool = False, **_: Any) -> None:
        self._is_master = is_master
        self._built: RunPublisher | None = None
        self._channel: PublisherEndpoint | None = None
        self._endpoints: list[str] = []
        self._workers = 0

    @property
    def _publisher(self) -> RunPublisher:
        if self._built is None:
            self._built = RunPublisher(self.slipstream_shards)
        return self._built

    @property
    def _publishes(self) -> bool:
        return self._is_master or self._publisher.shards is not None

    def prepare(self) -> dict[str, Any]:
        """Open the address of the coming sync, on ranks that publish; connections are kept from one to the next."""
        if not self._publishes:
            return {}
        self._channel = self._publisher.open(node_address(), same_host=False)
        return {"endpoint": self._channel.invite()}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Tell every rank the addresses and how many workers will connect."""
        endpoints = [told["endpoint"] for told in metadata[:actor_wg_world_size] if told]

        def arguments(ranks: int) -> dict[str, list[Any]]:
            return {"endpoints": [endpoints] * ranks, "workers": [rollout_world_size] * ranks}

        return arguments(actor_wg_world_size), arguments(rollout_world_size)

    def init_process_group(self, endpoints: list[str], workers: int) -> None:  # type: ignore[override]
        """Remember the topology; there is no process group."""
        self._endpoints, self._workers = endpoints, workers

    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, float]:
        """Publish; a rank that does not only takes part in gathering the tensors."""
        if not self._publishes:
            for _ in weights:
                pass
            return {}
        assert self._channel is not None, "verl calls prepare first"
        return await self._publisher.publish(
            weights,
            self._channel,
            workers=self._workers,
            call_engine=_nothing,  # verl's manager calls the rollout side by itself
            step=global_steps,
            agree=(lambda ready: ready) if self._publisher.shards is None else all_ranks,
            log=self._is_master,
        )

    def receive_weights(self, global_steps: int | None = None) -> RemoteUpdate:  # type: ignore[override]
        """Hand the addresses to the rollout's server adapter."""
        return RemoteUpdate(self._endpoints, self._publisher.timeout)

    def finalize(self) -> None:
        """The sync is over; its connections stay."""

    def sync_metrics(self) -> dict[str, float]:
        """Metrics of the last sync out of this process, whichever path it took."""
        return dict(publishing.last_metrics)


async def _nothing() -> None:
    return None
