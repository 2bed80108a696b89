"""An engine that keeps the checkpoint's tensors as they are, each in a dtype of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch

from slipstream.triton_kernels import as_bits


class PlainEngine:
    """`slipstream.core.weights.engine.Engine` over a dict of tensors."""

    device = torch.device("cpu")

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, torch.dtype]) -> None:
        self.tensors = {name: torch.zeros(shape, dtype=dtypes[name]) for name, shape in shapes.items()}
        self.loads = 0
        """Tensors with data that the loader was given: none, if all were written in place."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            self.loads += not weight.is_meta
            self.tensors[name].copy_(weight)

    def finish_loading(self) -> None:
        pass

    def derived(self) -> list[dict[str, object]]:
        return []

    def live_storages(self) -> dict[int, int]:
        storages = (tensor.untyped_storage() for tensor in self.tensors.values())
        return {storage.data_ptr(): storage.nbytes() for storage in storages}

    def transformed(self) -> list[torch.Tensor]:
        return []

    def checksums(self) -> dict[str, str]:
        return {n: hashlib.sha256(as_bits(t).numpy().tobytes()).hexdigest() for n, t in self.tensors.items()}
