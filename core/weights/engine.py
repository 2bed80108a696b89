"""What weight sync needs of a rollout engine worker; adapters in `slipstream.plugins` implement it."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any, Protocol

import torch


class Engine(Protocol):
    """One engine worker: one process, one tensor-parallel rank."""

    @property
    def device(self) -> torch.device:
        """Where its weights live."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> object:
        """The engine's own loader of checkpoint tensors."""

    def finish_loading(self) -> None:
        """What the engine must run after `load_weights` (rebuild derived copies)."""

    def derived(self) -> list[MutableMapping[str, Any]]:
        """Where a load through `load_weights` and `finish_loading` keeps what it makes of the weights: the attributes,
        parameters and buffers of the layers that transform. An undo puts their entries back, and what tensors held."""

    def live_storages(self) -> dict[int, int]:
        """Data pointer to size in bytes of every storage under the model's current parameters and buffers."""

    def transformed(self) -> list[torch.Tensor]:
        """Parameters whose memory is no longer in checkpoint form; they take the loader path."""

    def checksums(self) -> dict[str, str]:
        """Checksum of the raw bytes of every parameter and buffer, by engine name."""
