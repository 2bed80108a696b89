"""Which changes of a tensor lie in a box, and where: after extraction, where the changes are."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .box import Box

Ints = NDArray[np.int64]


@overload
def restrict(positions: Ints, box: Box) -> tuple[slice | Ints, Ints]: ...


@overload
def restrict(positions: Tensor, box: Box) -> tuple[slice | Tensor, Tensor]: ...


def restrict(positions: Any, box: Box) -> Any:
    """Map the positions that lie in a box.

    Args:
        positions: int64[n], strictly ascending flat source indices; a numpy array, or a tensor on an accelerator.
        box: normalised.

    Returns:
        What to take of arrays parallel to `positions` (a slice, or int64[m] indices), and the destination index of
        each taken one, int64[m]; of the kind of `positions`. On an accelerator one synchronisation, two where the box
        is not a range.
    """
    ends = [box.src_offset, box.src_offset + box.span]
    if isinstance(positions, Tensor):
        first, last = torch.searchsorted(positions, torch.tensor(ends, device=positions.device)).tolist()
    else:
        first, last = np.searchsorted(positions, ends).tolist()
    within = slice(first, last)
    if box.sizes == (box.span,) and box.dst_strides == (1,):
        return within, positions[within] + (box.dst_offset - box.src_offset)
    if isinstance(positions, Tensor):
        from .scatter import gpu

        taken, mapped = gpu.select(positions[within], box)
        return taken + first, mapped
    from .scatter import cpu

    return _select(positions, first, last, box, cpu)


def _select(positions: Ints, first: int, last: int, box: Box, cpu: Any) -> tuple[Ints, Ints]:
    taken, mapped = np.empty(last - first, np.int64), np.empty(last - first, np.int64)
    arrays = (np.array(values, np.int64) for values in (box.sizes, box.src_strides, box.dst_strides))
    count = cpu.select(positions, first, last, box.src_offset, box.dst_offset, *arrays, taken, mapped)
    return taken[:count], mapped[:count]
