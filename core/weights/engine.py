"""What weight sync needs of a rollout engine worker; adapters in `slipstream.plugins` implement it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, NamedTuple, Protocol

import torch

from slipstream.triton_kernels import as_bits


class LiveStorage(NamedTuple):
    """Memory that an engine serves from."""

    bytes: int
    views: tuple[tuple[str, torch.dtype, int, tuple[int, ...], tuple[int, ...]], ...]
    """Name, dtype, offset, shape and strides of each parameter and buffer in it."""


def storages_under(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[int, LiveStorage]:
    """The storages of named tensors, by data pointer; see `Engine.live_storages`."""
    sizes: dict[int, int] = {}
    views: dict[int, list[Any]] = {}
    for name, tensor in tensors:
        storage = tensor.untyped_storage()
        pointer = storage.data_ptr()
        sizes[pointer] = storage.nbytes()
        place = name, tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
        views.setdefault(pointer, []).append(place)
    return {pointer: LiveStorage(size, tuple(views[pointer])) for pointer, size in sizes.items()}


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

    def live_storages(self) -> dict[int, LiveStorage]:
        """Every storage under the model's current parameters and buffers, by data pointer."""

    def transformed(self) -> list[torch.Tensor]:
        """Parameters whose memory is no longer in checkpoint form; they take the loader path."""

    def checksums(self) -> dict[str, str]:
        """Checksum of the raw bytes of every parameter and buffer, by engine name."""


class ModuleEngine:
    """The part of an `Engine` that is the same for every engine whose model is a `torch.nn.Module`."""

    @property
    def model(self) -> Any:
        """The model that serves now."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where the model's weights live."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> object:
        """The model's own loader."""
        return self.model.load_weights(weights)

    def live_storages(self) -> dict[int, LiveStorage]:
        """Every storage under the model's parameters and buffers, by data pointer."""
        return storages_under(self.tensors())

    def checksums(self) -> dict[str, str]:
        """SHA-256 of the raw bytes of every parameter and buffer, in row-major order."""
        return {name: _sha256(tensor) for name, tensor in self.tensors()}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter and buffer, under each of its names."""
        yield from self.model.named_parameters(remove_duplicate=False)
        yield from self.model.named_buffers(remove_duplicate=False)


def layer_state(layers: Iterable[torch.nn.Module]) -> list[MutableMapping[str, Any]]:
    """Attributes, parameters and buffers of `layers` and of all below them, each once; see `Engine.derived`."""
    modules = {id(module): module for layer in layers for module in layer.modules()}
    return [place for m in modules.values() for place in (m.__dict__, m._parameters, m._buffers)]


def keeps_parameters(layer: torch.nn.Module, prepare: Callable[[torch.nn.Module], object]) -> bool:
    """Whether an engine's preparation of a layer leaves its parameters alone, bit for bit and where they are.

    `prepare` runs after every load, so running it once more is no more than a load does. What it changes is put back.
    """
    before = {name: (p, p.data_ptr(), p.detach().clone()) for name, p in layer.named_parameters(recurse=False)}
    prepare(layer)
    kept = True
    for name, (parameter, address, value) in before.items():
        now = getattr(layer, name)
        if now.data_ptr() != address or now.shape != value.shape:
            kept = False
            setattr(layer, name, parameter)
            parameter.data.copy_(value)
        elif not torch.equal(as_bits(now.detach()), as_bits(value)):
            kept = False
            now.data.copy_(value)
    return kept


def _sha256(tensor: torch.Tensor) -> str:
    raw: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(memoryview(raw)).hexdigest()


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

    def live_storages(self) -> dict[int, LiveStorage]:
        """Every storage under its tensors, by data pointer."""
        return storages_under(self.tensors.items())

    def transformed(self) -> list[torch.Tensor]:
        """None."""
        return []

    def checksums(self) -> dict[str, str]:
        """SHA-256 of the raw bytes of each, in row-major order."""
        return {name: _sha256(tensor) for name, tensor in self.tensors.items()}
