"""OpenRLHF's policy actor, publishing its weights through slipstream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterator
from typing import Any

import deepspeed
import ray
import torch
from deepspeed.module_inject.layers import GatherReplacedLayerParams

from openrlhf.trainer.ray import ppo_actor
from openrlhf.utils.distributed_util import torch_dist_barrier_and_cuda_sync
from slipstream.core.weights.publishing import RunPublisher, all_ranks
from slipstream.core.weights.transports.run_endpoints import node_address, run_socket
from slipstream.plugins.openrlhf.actor_classes import by_reference, plain
from slipstream.plugins.openrlhf.shards import DeepSpeedShards

logger = logging.getLogger(__name__)


class SyncedTrainer(ppo_actor.ActorPPOTrainer):  # type: ignore[misc]
    """Takes the place of `ActorPPOTrainer` in `SlipstreamPolicyActor`.

    Every rank publishes the flat ranges that it holds. Where the weights have to be gathered, every rank takes part in
    that and rank 0 publishes. Rank 0 alone calls the engines.
    """

    _publisher: RunPublisher | None = None
    _same_host = False
    _syncs = 0

    def _init_vllm_sync_group(self, backend: str) -> None:
        """Not needed: engine workers connect to the ranks that publish."""

    def broadcast_to_vllm(self) -> dict[str, float]:
        """Bring all engines to this policy's weights; a collective of its ranks.

        Returns:
            Metrics of the sync; empty on ranks that publish nothing.
        """
        if self._publisher is None:
            split = self.strategy.args.ds.tensor_parallel_size > 1
            self._publisher = RunPublisher(DeepSpeedShards(self._parameters(), split))
            self._same_host = self._is_on_one_host()
        self._syncs += 1
        first = torch.distributed.get_rank() == 0
        sharded = self._publisher.shards is not None
        torch.cuda.empty_cache()
        metrics: dict[str, float] = {}
        if sharded or first:
            metrics = asyncio.run(self._publish(self._publisher, sharded, first))
        else:
            for _ in self._gathered():
                pass
        if first and getattr(self.strategy.args.vllm, "enable_prefix_caching", False):
            # After the sync: prefixes that were cached during it belong to the old weights as well.
            ray.get([engine.reset_prefix_cache.remote() for engine in self.vllm_engines])
        torch.cuda.empty_cache()
        torch_dist_barrier_and_cuda_sync()
        return metrics

    async def _publish(self, publisher: RunPublisher, sharded: bool, first: bool) -> dict[str, float]:
        rank = torch.distributed.get_rank()
        gathered: Iterator[tuple[str, torch.Tensor]] = iter(()) if sharded else self._gathered()
        try:
            endpoint = f"ipc://{run_socket(f'policy{rank}')}" if self._same_host else node_address()
            if sharded:
                channel, addresses = publisher.shared(endpoint, self._same_host)
            else:
                channel = publisher.open(endpoint, self._same_host)
                addresses = [channel.invite()]
        except BaseException:
            for _ in gathered:  # collectives: the other ranks wait in them
                pass
            raise
        vllm = self.strategy.args.vllm
        return await publisher.publish(
            gathered,
            channel,
            workers=vllm.num_engines * vllm.tensor_parallel_size,
            call_engine=lambda: self._call_engines(addresses, publisher.timeout) if first else _nothing(),
            step=self._syncs,
            agree=all_ranks if sharded else (lambda ready: ready),
            log=first,
        )

    async def _call_engines(self, addresses: list[str], timeout: float) -> None:
        calls: list[Awaitable[None]] = [
            engine.slipstream_sync.remote(endpoints=addresses, timeout=timeout) for engine in self.vllm_engines
        ]
        await asyncio.gather(*calls)

    def _parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """What OpenRLHF would broadcast, by checkpoint name."""
        return list(self.actor.model.module.named_parameters())

    def _gathered(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, whole tensor), gathered while the consumer holds it; a collective."""
        ds = self.strategy.args.ds
        for name, parameter in self._parameters():
            if ds.tensor_parallel_size > 1:
                whole: contextlib.AbstractContextManager[Any] = GatherReplacedLayerParams(
                    [parameter], self.actor.model.module, enabled=True
                )
            else:
                whole = deepspeed.zero.GatheredParameters([parameter], enabled=ds.zero_stage == 3)
            with whole:
                yield name, parameter.data

    def _is_on_one_host(self) -> bool:
        """Whether all ranks and all engines share a node; a collective."""
        nodes = {str(ray.get_runtime_context().get_node_id())}
        if torch.distributed.get_rank() == 0:
            nodes.update(ray.get([engine.slipstream_node.remote() for engine in self.vllm_engines]))
        told: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(told, nodes)
        return len(set().union(*told)) == 1


async def _nothing() -> None:
    return None


_Base: Any = plain(ppo_actor.PolicyModelActor)


@by_reference
class SlipstreamPolicyActor(_Base):  # type: ignore[misc]
    """Takes the place of `PolicyModelActor`."""

    def init_model_from_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """See `PolicyModelActor.init_model_from_pretrained`, which builds its trainer from this module's globals.

        Raises:
            RuntimeError: it did not build ours.
        """
        ppo_actor.ActorPPOTrainer = SyncedTrainer
        super().init_model_from_pretrained(*args, **kwargs)
        if not isinstance(self.trainer, SyncedTrainer):
            raise RuntimeError(
                f"expected PolicyModelActor to build slipstream's trainer, got {type(self.trainer)}: its weights would "
                "be broadcast without slipstream; use --slipstream.weight_sync native"
            )

    def broadcast_to_vllm(self) -> None:
        """See `PolicyModelActor.broadcast_to_vllm`."""
        self._sync_metrics = self.trainer.broadcast_to_vllm()

    def slipstream_sync_metrics(self) -> dict[str, float]:
        """Metrics of the last sync; empty on ranks that published nothing."""
        return dict(self._sync_metrics)
