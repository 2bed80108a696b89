"""The checkpoint engine `slipstream`: weight sync of verl's disaggregated trainers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ray
import torch

from slipstream.core.weights import ZmqPublisherChannel
from slipstream.plugins.verl import publishing
from slipstream.plugins.verl.publishing import VerlPublisher
from slipstream.plugins.verl.rollout import WIRE_FORMAT, RemoteUpdate
from verl.checkpoint_engine.base import CheckpointEngine


class SlipstreamCheckpointEngine(CheckpointEngine):
    """Trainer rank 0 publishes over TCP; every engine worker connects to it directly.

    verl builds one in each trainer rank and one beside each rollout rank. The latter only passes the address on: the
    weights never go through the checkpoint-engine process.
    """

    wire_format = WIRE_FORMAT

    def __init__(self, bucket_size: int = 0, is_master: bool = False, **_: Any) -> None:
        self._is_master = is_master
        self._publisher = VerlPublisher()
        self._channel: ZmqPublisherChannel | None = None
        self._endpoint = ""
        self._workers = 0

    def prepare(self) -> dict[str, Any]:
        """Open the address of the coming sync (trainer rank 0)."""
        if not self._is_master:
            return {}
        self._close()
        host = str(ray.util.get_node_ip_address()).strip("[]")  # type: ignore[no-untyped-call]
        self._channel = self._publisher.open(f"tcp://[{host}]:*" if ":" in host else f"tcp://{host}:*")
        return {"endpoint": self._channel.endpoint}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Tell every rank the address and how many workers will connect."""
        endpoint = metadata[0]["endpoint"]

        def arguments(ranks: int) -> dict[str, list[Any]]:
            return {"endpoint": [endpoint] * ranks, "workers": [rollout_world_size] * ranks}

        return arguments(actor_wg_world_size), arguments(rollout_world_size)

    def init_process_group(self, endpoint: str, workers: int) -> None:  # type: ignore[override]
        """Remember the topology; there is no process group."""
        self._endpoint, self._workers = endpoint, workers

    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, float]:
        """Publish from rank 0; the other ranks only take part in gathering the tensors."""
        if not self._is_master:
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
            agree=lambda ready: ready,
            log=True,
        )

    def receive_weights(self, global_steps: int | None = None) -> RemoteUpdate:  # type: ignore[override]
        """Hand the address to the rollout's server adapter."""
        return RemoteUpdate(self._endpoint, self._publisher.timeout)

    def finalize(self) -> None:
        """Close the address of this sync."""
        self._close()

    def sync_metrics(self) -> dict[str, float]:
        """Metrics of the last sync out of this process, whichever path it took."""
        return dict(publishing.last_metrics)

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


async def _nothing() -> None:
    return None
