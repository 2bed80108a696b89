"""The record of one applied set of changes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


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


def order_error() -> ValueError:
    """The error for positions that are not strictly ascending from 0 on."""
    return ValueError(
        "expected positions >= 0 and strictly ascending, got some negative, repeated or out of order; nothing was "
        "written: sort them and keep one value for each"
    )
