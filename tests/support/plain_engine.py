"""An engine that keeps the checkpoint's tensors as they are, each in a dtype of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from slipstream.core.weights import TensorEngine


class PlainEngine(TensorEngine):
    """Counts what its loader is given."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, torch.dtype]) -> None:
        super().__init__({name: torch.zeros(shape, dtype=dtypes[name]) for name, shape in shapes.items()})
        self.loads = 0
        """Tensors with data that the loader was given: none, if all were written in place."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        weights = list(weights)
        self.loads += sum(not weight.is_meta for _, weight in weights)
        super().load_weights(weights)
