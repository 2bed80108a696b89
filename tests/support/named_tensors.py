"""An engine that holds each checkpoint tensor as it is, under its own name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


class NamedTensors:
    """Implements `slipstream.core.weights.engine.Engine`."""

    device = torch.device("cpu")

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        for name, weight in weights:
            self.tensors[name].copy_(weight)

    def finish_loading(self) -> None:
        """Nothing is derived from the weights."""

    def derived(self) -> list[dict[str, object]]:
        return []

    def live_storages(self) -> dict[int, int]:
        return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in self.tensors.values()}

    def transformed(self) -> list[Tensor]:
        return []

    def checksums(self) -> dict[str, str]:
        return {
            name: hashlib.sha256(t.view(torch.uint8).numpy().tobytes()).hexdigest() for name, t in self.tensors.items()
        }
