"""Several trainer ranks that each hold a part of the checkpoint, and engines that listen to all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from toy_engine import ToyEngine

from slipstream.core.weights import InProcessHub, Publisher, PublisherSettings, Subscriber, SyncReport, TensorSpec
from slipstream.core.weights.trainer_shards import TrainerShards
from slipstream.triton_kernels import Box


class Ranks:
    """A collective over threads, as `all_reduce(MIN)` is over processes."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._ready: list[bool] = []

    def agree(self, ready: bool) -> bool:
        self._ready.append(ready)
        self._barrier.wait(30)
        verdict = all(self._ready)
        if self._barrier.wait(30) == 0:
            self._ready.clear()
        self._barrier.wait(30)
        return verdict


class ShardedTrainer:
    """One publisher a rank, one thread each; the engines have one too."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        senders: Mapping[int, Mapping[str, Sequence[Box]]],
        engines: list[ToyEngine],
        patience: float = 30.0,
        **settings: Any,
    ) -> None:
        specs = tuple(TensorSpec.of(name, tensor) for name, tensor in weights.items())
        self.engines, self._senders, self._patience = engines, senders, patience
        self.publishers = [
            Publisher(PublisherSettings(timeout=patience, **settings), TrainerShards(rank, 77, specs, senders))
            for rank in senders
        ]
        self.subscribers = [Subscriber(engine, f"rank {engine.rank}") for engine in engines]
        self._ranks = Ranks(len(self.publishers))
        self.hub_of: Callable[[int], InProcessHub] = lambda rank: InProcessHub()
        self.errors: list[BaseException | None] = []

    def shard(self, rank: int, weights: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
        """What `rank` holds: flat local tensors, in the order of the table."""
        result = []
        for name, tensor in weights.items():
            boxes = self._senders[rank].get(name, ())
            if not boxes:
                continue
            local = torch.zeros(sum(box.numel for box in boxes), dtype=tensor.dtype)
            for box in boxes:
                source = tensor.contiguous().as_strided(box.sizes, box.src_strides, box.src_offset)
                local.as_strided(box.sizes, box.dst_strides, box.dst_offset).copy_(source)
            result.append((name, local))
        return result

    def sync(self, weights: Mapping[str, Tensor]) -> list[SyncReport | BaseException]:
        """One sync; what each trainer rank returned or raised. Errors of the engines are kept in `errors`."""
        hubs = [self.hub_of(rank) for rank in range(len(self.publishers))]
        ends = [[hub.connect(f"worker {index}") for hub in hubs] for index in range(len(self.engines))]

        def engine(index: int) -> BaseException | None:
            try:
                self.subscribers[index].sync(ends[index], self._patience)
            except Exception as error:
                return error
            return None

        def publish(rank: int) -> SyncReport | BaseException:
            try:
                update = self.publishers[rank].stage(self.shard(rank, weights))
                return self.publishers[rank].deliver(update, hubs[rank], len(self.engines), self._ranks.agree)
            except Exception as error:
                return error

        with ThreadPoolExecutor(len(self.publishers) + len(self.engines)) as pool:
            workers = [pool.submit(engine, index) for index in range(len(self.engines))]
            outcomes = list(pool.map(publish, range(len(self.publishers))))
            self.errors = [worker.result(3 * self._patience) for worker in workers]
        return outcomes

    def holds(self, weights: dict[str, Tensor]) -> bool:
        """Whether every engine holds exactly what a dense load of `weights` gives."""
        return all(engine.checksums() == engine.densely_loaded(weights) for engine in self.engines)
