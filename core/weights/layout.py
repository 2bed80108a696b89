"""Where each checkpoint tensor lives inside an engine worker.

A `LayoutMap` is what WeightBridge (arXiv 2609.25442) calls a load specification: for every checkpoint tensor the
affine pieces of engine memory that hold it, so that a change addressed as (tensor, flat element index) can be written
in place whatever the fusion, sharding or padding. It is recorded, not written by hand: see `recorder`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import torch

from slipstream.core.weights.engine import LiveStorage
from slipstream.core.weights.tensors import TensorSpec, digest
from slipstream.triton_kernels import Box

Kind = Literal["mapped", "loader", "unused"]


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """One affine piece of a checkpoint tensor inside one storage of the worker."""

    storage: int
    """Index into `LayoutMap.storages`."""
    box: tuple[int, int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    """The fields of a `Box`: checkpoint element index to element index in the storage."""

    @classmethod
    def of(cls, storage: int, box: Box) -> Piece:
        """`box` of the storage with that index."""
        return cls(storage, (box.src_offset, box.dst_offset, box.sizes, box.src_strides, box.dst_strides))

    def as_box(self) -> Box:
        """The piece as the kernels take it."""
        return Box(*self.box)


class TensorLayout(msgspec.Struct, frozen=True, array_like=True):
    """How one checkpoint tensor is held by one worker."""

    name: str
    dtype: str
    """dtype the engine stores it in; the trainer casts to it before comparing."""
    kind: Kind
    """`mapped`: written in place through `pieces`. `loader`: the engine transforms it while loading, so it always goes
    through the engine's own loader, dense. `unused`: this worker's loader ignores it (tied twin, other rank's expert).
    """
    pieces: tuple[Piece, ...] = ()
    reason: str = ""
    """Why a tensor is not `mapped`."""


@dataclass(frozen=True)
class Fill:
    """A constant the loader writes beside the copies (vocabulary padding); repeated at every dense seed."""

    view: torch.Tensor
    value: float


@dataclass
class LayoutMap:
    """The layout of all checkpoint tensors in one worker."""

    specs: tuple[TensorSpec, ...]
    tensors: tuple[TensorLayout, ...]
    """Same order as `specs`."""
    storages: list[torch.Tensor]
    """Flat integer-bit views of the engine's storages: int[numel of the storage], on the engine's device."""
    fills: list[Fill] = field(default_factory=list)
    opaque: list[torch.Tensor] = field(default_factory=list)
    """Engine tensors that `loader` tensors write; saved whole before such a load, for the undo."""
    live: dict[int, LiveStorage] = field(default_factory=dict)
    """Of `storages` those that the engine served from at the recording, by data pointer."""
    served: dict[int, int] = field(default_factory=dict)
    """Of the storages under `fills` and `opaque` those that the engine served from: data pointer to bytes."""

    @property
    def digest(self) -> str:
        """Equal for two workers exactly when they hold the same elements in the same form."""
        return digest(self.tensors)

    def is_current(self, live: Mapping[int, LiveStorage]) -> bool:
        """Whether every storage that an update writes is still the engine's, and its parameters are where they were.

        `live` are the engine's, as of now. An engine that replaced, moved or swapped parameters after the recording
        would otherwise be patched in memory that it no longer reads, or reads as something else.
        """
        return all(live.get(pointer) == storage for pointer, storage in self.live.items()) and all(
            pointer in live and live[pointer].bytes == size for pointer, size in self.served.items()
        )


def source_box(box: Box) -> Box:
    """The box on the checkpoint side only: maps each covered flat index to itself."""
    return Box(box.src_offset, box.src_offset, box.sizes, box.src_strides, box.src_strides)


def flat_bits(tensor: torch.Tensor, bits_dtype: torch.dtype) -> torch.Tensor:
    """The whole storage under `tensor` as a flat integer tensor, without a copy."""
    storage = tensor.untyped_storage()
    width = bits_dtype.itemsize
    return torch.empty(0, dtype=bits_dtype, device=tensor.device).set_(storage, 0, (storage.nbytes() // width,), (1,))
