"""Level 0 for units: Elias-Fano positions and absolute values (`slipstream.triton_kernels.elias_fano`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.weights.tensors import DTYPES
from slipstream.core.weights.wire.arrays import Bits, Places
from slipstream.core.weights.wire.unit import OldValues, Uploaded, bits_dtype
from slipstream.triton_kernels import BITS_OF_WIDTH, PackedChanges, PackedUnits, elias_fano

U8 = NDArray[np.uint8]


class Encoder:
    """`encode` as a codec's encoder; it keeps nothing from one unit to the next."""

    def encode(self, old: OldValues, positions: Places, values: Bits) -> Any:
        """See `encode`."""
        return encode(old, positions, values)

    def finish(self) -> None:
        """Nothing to decide."""


def encode(old: OldValues, positions: Places, values: Bits) -> Any:
    """Encode the changes of one unit.

    Args:
        old: the unit at the base version; read only where a dense block needs what did not change.
        positions: int64[changes], strictly ascending element indices below `old.numel`.
        values: unsigned[changes], the new elements; both on the accelerator where the unit is.

    Returns:
        uint8[size], the stored blocks one after another, where the changes are; empty when nothing changed.
    """
    blocks: Any = elias_fano.encode(positions, values, old.numel, old.all)
    return blocks


def decode(data: U8 | Uploaded, old: OldValues) -> tuple[Places, Bits]:
    """Inverse of `encode`; old values are not read.

    Returns:
        positions int64[changes] strictly ascending, values unsigned[changes].

    Raises:
        CorruptBlockError: `data` is not a run of valid blocks of such a unit.
    """
    width = DTYPES[old.dtype].itemsize
    if isinstance(data, Uploaded):
        return elias_fano.decode(data.device, old.numel, BITS_OF_WIDTH[width], data.host)
    return elias_fano.decode(data, old.numel, bits_dtype(width))


def unpack(data: U8, old: OldValues) -> PackedChanges:
    """`decode` on the host, into packed changes."""
    return elias_fano.unpack(data, old.numel, bits_dtype(DTYPES[old.dtype].itemsize))


def unpack_all(data: U8, sections: NDArray[np.int64], olds: Sequence[OldValues]) -> PackedUnits:
    """`unpack` of several units of one width: int64[k, 2], where the payload of each begins and its bytes."""
    numels = np.array([old.numel for old in olds])
    width = DTYPES[olds[0].dtype].itemsize
    return elias_fano.unpack_all(data, np.column_stack((sections, numels)), bits_dtype(width))
