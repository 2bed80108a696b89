"""A small engine with the loader habits of real ones: fused, sharded, padded, tied, transforming."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from slipstream.core.weights import InProcessHub, Publisher, PublisherSettings, Subscriber, SyncReport, TensorEngine

HIDDEN, HEADS, VOCAB, PADDED = 24, 8, 50, 64


def checkpoint(seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Trainer tensors; no matrix is square."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    embed = draw(VOCAB, HIDDEN)
    return {
        "embed": embed,
        "q": draw(HEADS * 2, HIDDEN),
        "k": draw(HEADS, HIDDEN),
        "v": draw(HEADS, HIDDEN),
        "o": draw(HIDDEN, HEADS * 2),
        "gate": draw(32, HIDDEN),
        "up": draw(32, HIDDEN),
        "norm": draw(HIDDEN),
        "router": draw(6, HIDDEN),
        "flipped": draw(6, HIDDEN),
        "lm_head": embed,
    }


class ToyEngine(TensorEngine):
    """One tensor-parallel rank of `size`; stores bf16 (router fp32) whatever the trainer sends."""

    def __init__(self, rank: int = 0, size: int = 1, dtype: torch.dtype = torch.bfloat16) -> None:
        self.rank, self.size = rank, size
        rows = HEADS * 2 // size + 2 * (HEADS // size)
        self.tensors = {
            "embed": torch.full((PADDED // size, HIDDEN), 7.0, dtype=dtype),
            "qkv": torch.zeros(rows, HIDDEN, dtype=dtype),
            "o": torch.zeros(HIDDEN, HEADS * 2 // size, dtype=dtype),
            "gate_up": torch.zeros(2, 32 // size, HIDDEN, dtype=dtype),
            "norm": torch.zeros(HIDDEN, dtype=dtype),
            "router": torch.zeros(6, HIDDEN),
            "flipped": torch.zeros(HIDDEN, 6, dtype=dtype),
        }
        self.fail_after: int | None = None
        """Tensors that the loader still takes before it fails, for ever after."""
        self.torn = False
        """Whether it has then written a part."""
        self.loads = 0

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        for name, weight in weights:
            self.loads += 1
            if self.fail_after is not None and not weight.is_meta:
                if self.fail_after == 0:
                    if self.torn:
                        self.tensors["flipped"][:3].fill_(9)
                    raise RuntimeError("toy engine: loader refuses")
                self.fail_after -= 1
            getattr(self, f"_load_{name}")(weight)

    def _shard(self, weight: Tensor, dim: int) -> Tensor:
        length = weight.shape[dim] // self.size
        return weight.narrow(dim, self.rank * length, length)

    def _load_embed(self, weight: Tensor) -> None:
        rows = PADDED // self.size
        start = self.rank * rows
        part = weight[start : start + rows]
        self.tensors["embed"][: len(part)].copy_(part)
        self.tensors["embed"][len(part) :].fill_(0)

    def _load_q(self, weight: Tensor) -> None:
        self.tensors["qkv"][: HEADS * 2 // self.size].copy_(self._shard(weight, 0))

    def _load_k(self, weight: Tensor) -> None:
        start, length = HEADS * 2 // self.size, HEADS // self.size
        self.tensors["qkv"].narrow(0, start, length).copy_(self._shard(weight, 0))

    def _load_v(self, weight: Tensor) -> None:
        self.tensors["qkv"][-(HEADS // self.size) :].copy_(self._shard(weight, 0))

    def _load_o(self, weight: Tensor) -> None:
        self.tensors["o"].copy_(self._shard(weight, 1))

    def _load_gate(self, weight: Tensor) -> None:
        self.tensors["gate_up"][0].copy_(self._shard(weight, 0))

    def _load_up(self, weight: Tensor) -> None:
        self.tensors["gate_up"][1].copy_(self._shard(weight, 0))

    def _load_norm(self, weight: Tensor) -> None:
        self.tensors["norm"].copy_(weight)

    def _load_router(self, weight: Tensor) -> None:
        self.tensors["router"].copy_(weight)

    def _load_flipped(self, weight: Tensor) -> None:
        self.tensors["flipped"].copy_(-weight.t())

    def _load_lm_head(self, weight: Tensor) -> None:
        """Tied to the embedding: ignored, as vLLM does."""

    def densely_loaded(self, weights: dict[str, Tensor]) -> dict[str, str]:
        """Checksums of a fresh engine of the same rank after a plain load of `weights`."""
        fresh = ToyEngine(self.rank, self.size, self.tensors["qkv"].dtype)
        fresh.load_weights(weights.items())
        return fresh.checksums()


class Pair:
    """A publisher with its engines, one thread an engine."""

    def __init__(self, engines: list[ToyEngine], **settings: Any) -> None:
        self.engines = engines
        self.publisher = Publisher(PublisherSettings(**settings))
        self.subscribers = [Subscriber(engine, f"rank {engine.rank}") for engine in engines]
        self.errors: list[BaseException | None] = []

    def sync(
        self,
        weights: dict[str, Tensor],
        hub: Any = None,
        patience: float = 60.0,
        agree: Callable[[bool], bool] = lambda ready: ready,
    ) -> SyncReport:
        """One sync; engine-side errors are kept in `errors`, the publisher's are raised.

        Args:
            weights: the trainer's tensors.
            hub: the link; a sound one by default.
            patience: seconds that both ends wait for a message.
            agree: what the other trainer ranks say.
        """
        self.publisher._settings = dataclasses.replace(self.publisher._settings, timeout=patience)
        hub = hub or InProcessHub()
        ends = [hub.connect(f"worker {index}") for index in range(len(self.engines))]
        self.errors = [None] * len(ends)

        def run(index: int) -> None:
            try:
                self.subscribers[index].sync([ends[index]], patience)
            except BaseException as error:
                self.errors[index] = error

        threads = [threading.Thread(target=run, args=(index,)) for index in range(len(ends))]
        for thread in threads:
            thread.start()
        try:
            update = self.publisher.stage(weights.items())
            return self.publisher.deliver(update, hub, len(ends), agree)
        finally:
            for thread in threads:
                thread.join(3 * patience + 30)  # a busy machine is no hang
                assert not thread.is_alive(), "an engine worker hangs"

    def holds(self, weights: dict[str, Tensor]) -> bool:
        """Whether every engine holds exactly what a dense load of `weights` gives."""
        return all(engine.checksums() == engine.densely_loaded(weights) for engine in self.engines)
