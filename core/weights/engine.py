"""What weight sync needs of a rollout engine worker; adapters in `slipstream.plugins` implement it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, MutableMapping
from typing import Any, Protocol

import torch

from slipstream.triton_kernels import as_bits


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


class TensorEngine:
    """An `Engine` over tensors that nothing is derived from.

    As it is, it holds each checkpoint tensor under its own name; a subclass that fuses or cuts them has a loader of its
    own.
    """

    device = torch.device("cpu")

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        """Hold `tensors` (any shapes and dtypes, on `device`), which are written in place from now on."""
        self.tensors = tensors

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> object:
        """Copy each into the tensor of its name.

        Raises:
            KeyError: there is none.
            RuntimeError: the shapes differ.
        """
        for name, weight in weights:
            self.tensors[name].copy_(weight)
        return None

    def finish_loading(self) -> None:
        """Nothing to do."""

    def derived(self) -> list[MutableMapping[str, Any]]:
        """Nothing."""
        return []

    def live_storages(self) -> dict[int, int]:
        """Data pointer to bytes."""
        storages = (tensor.untyped_storage() for tensor in self.tensors.values())
        return {storage.data_ptr(): storage.nbytes() for storage in storages}

    def transformed(self) -> list[torch.Tensor]:
        """None."""
        return []

    def checksums(self) -> dict[str, str]:
        """SHA-256 of the raw bytes of each, in row-major order."""
        return {
            name: hashlib.sha256(as_bits(tensor.contiguous()).cpu().numpy().tobytes()).hexdigest()
            for name, tensor in self.tensors.items()
        }
