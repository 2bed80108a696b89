"""What a codec knows of the unit it encodes or decodes."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from slipstream.core.weights.wire.arrays import Bits, Places, to_host

I64 = NDArray[np.int64]


class OldValues(Protocol):
    """The elements of a unit at the base version; both ends have them, and neither copies them without need."""

    @property
    def numel(self) -> int:
        """Elements of the unit."""

    @property
    def dtype(self) -> str:
        """Wire name of their dtype, a key of `tensors.DTYPES`."""

    @property
    def copies(self) -> bool:
        """Whether `all` copies: the elements do not lie one after another."""

    def all(self) -> Bits:
        """[numel]: every element, in order, where the weights are. Reads the whole unit."""

    def at(self, positions: Places) -> Bits:
        """[n]: the elements at ascending `positions`, of the kind of those."""


class OnHost(NamedTuple):
    """`OldValues` for a codec that knows numpy arrays only, of a unit that may be on an accelerator."""

    old: OldValues

    @property
    def numel(self) -> int:
        return self.old.numel

    @property
    def dtype(self) -> str:
        return self.old.dtype

    @property
    def copies(self) -> bool:
        return True

    def all(self) -> NDArray[Any]:
        return to_host(self.old.all())

    def at(self, positions: I64) -> NDArray[Any]:
        return to_host(self.old.at(positions))


class Uploaded(NamedTuple):
    """A payload that a worker with an accelerator decodes."""

    host: NDArray[np.uint8]
    device: Tensor
    """uint8: the same bytes on the accelerator."""


def bits_dtype(width: int) -> np.dtype[Any]:
    """The unsigned numpy dtype of elements of `width` bytes."""
    return np.dtype(f"<u{width}")
