"""Level 0 for units: Elias-Fano positions and absolute values (`slipstream.triton_kernels.elias_fano`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.core.weights.tensors import DTYPES
from slipstream.core.weights.wire.unit import I64, Bits, OldValues, bits_dtype
from slipstream.triton_kernels import elias_fano

U8 = NDArray[np.uint8]


class Encoder:
    """`encode` as a codec's encoder; it keeps nothing from one unit to the next."""

    def encode(self, old: OldValues, positions: I64, values: Bits) -> U8:
        """See `encode`."""
        return encode(old, positions, values)

    def finish(self) -> None:
        """Nothing to decide."""


def encode(old: OldValues, positions: I64, values: Bits) -> U8:
    """Encode the changes of one unit.

    Args:
        old: the unit at the base version; read only where a dense block needs what did not change.
        positions: int64[changes], strictly ascending element indices below `old.numel`.
        values: unsigned[changes], the new elements.

    Returns:
        uint8[size], the stored blocks one after another; empty when nothing changed.
    """
    return elias_fano.encode(positions, values, old.numel, old.all)


def decode(data: U8, old: OldValues) -> tuple[I64, Bits]:
    """Inverse of `encode`; old values are not read.

    Returns:
        positions int64[changes] strictly ascending, values unsigned[changes].

    Raises:
        CorruptBlockError: `data` is not a run of valid blocks of such a unit.
    """
    return elias_fano.decode(data, old.numel, bits_dtype(DTYPES[old.dtype].itemsize))
