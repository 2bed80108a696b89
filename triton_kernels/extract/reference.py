"""The specification of extraction, in numpy.

out = []
for i in range(n):                      # flat row-major index, 64-bit
    if old[i] != new[i]:                # unsigned integers of the element's width
        out.append((i, new[i]))
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..bits import as_unsigned_numpy


def extract(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Positions int64[n] and values bits[n] of the changed elements of two 1-D bits tensors on the host."""
    changed = np.flatnonzero(as_unsigned_numpy(old) != as_unsigned_numpy(new)).astype(np.int64)
    positions = torch.from_numpy(changed)
    return positions, new[positions]
