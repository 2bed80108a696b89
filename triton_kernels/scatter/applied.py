"""The record of one applied set of changes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..packed import PackedChanges


class Applied(NamedTuple):
    """What `scatter_changes` wrote, in the order of the positions, on the device of the storage.

    Attributes:
        places: int64[m], flat storage indices written less `shift`, each once. Where the box only shifts, a view of the
            positions that were passed in: do not write to them while the record is in use.
        old_values: bits[m], what stood there.
        fingerprint_delta: in [0, 2**64): fingerprint of the box afterwards = (before + this) mod 2**64.
        shift: see `places`.
    """

    places: Tensor
    old_values: Tensor
    fingerprint_delta: int
    shift: int = 0

    @property
    def dst_index(self) -> Tensor:
        """int64[m], flat storage indices written."""
        return self.places + self.shift if self.shift else self.places


class AppliedPacked(NamedTuple):
    """What `scatter_packed` wrote through a box that only shifts, on the host."""

    changes: PackedChanges
    first: int
    """The first of the changes that was written; the others follow it."""
    old: NDArray[Any]
    """unsigned[m], what stood there."""
    fingerprint_delta: int
    """As of `Applied`."""
    shift: int
    """Storage index less position."""

    @property
    def dst_index(self) -> Tensor:
        """int64[m], flat storage indices written."""
        return torch.from_numpy(self.changes.positions(self.first, self.first + self.old.size) + self.shift)

    @property
    def old_values(self) -> Tensor:
        """bits[m], what stood there."""
        width = self.old.itemsize
        return torch.from_numpy(self.old.view(f"i{width}" if width > 1 else "u1"))


def order_error() -> ValueError:
    """The error for positions that are not strictly ascending from 0 on."""
    return ValueError(
        "expected positions >= 0 and strictly ascending, got some negative, repeated or out of order; nothing was "
        "written: sort them and keep one value for each"
    )
