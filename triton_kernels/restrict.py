"""Which changes of a tensor lie in a box, and where: on the host, after extraction."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .box import Box

Ints = NDArray[np.int64]


def restrict(positions: Ints, box: Box) -> tuple[slice | Ints, Ints]:
    """Map the positions that lie in a box.

    Args:
        positions: int64[n], strictly ascending flat source indices.
        box: normalised.

    Returns:
        What to take of arrays parallel to `positions` (a slice, or int64[m] indices), and the destination index of
        each taken one, int64[m].
    """
    first, last = np.searchsorted(positions, [box.src_offset, box.src_offset + box.span])
    if box.sizes == (box.span,) and box.dst_strides == (1,):
        taken = slice(int(first), int(last))
        return taken, positions[taken] + (box.dst_offset - box.src_offset)
    from .scatter import cpu

    return _select(positions, int(first), int(last), box, cpu)


def _select(positions: Ints, first: int, last: int, box: Box, cpu: Any) -> tuple[Ints, Ints]:
    taken, mapped = np.empty(last - first, np.int64), np.empty(last - first, np.int64)
    arrays = (np.array(values, np.int64) for values in (box.sizes, box.src_strides, box.dst_strides))
    count = cpu.select(positions, first, last, box.src_offset, box.dst_offset, *arrays, taken, mapped)
    return taken[:count], mapped[:count]
