"""Elements of a tensor at given places, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .bits import as_unsigned_numpy


def gather(bits: Tensor, places: NDArray[np.int64]) -> NDArray[Any]:
    """Read elements of 1-D contiguous bits (`as_bits` dtype) on any device.

    Args:
        bits: the elements.
        places: int64[n], indices.

    Returns:
        unsigned[n] on the host.

    Raises:
        IndexError: an index is negative or too large.
    """
    if bits.device.type != "cpu":
        return as_unsigned_numpy(bits[torch.from_numpy(places).to(bits.device)].cpu())
    from .prefetch import gather as compiled

    array = as_unsigned_numpy(bits)
    if places.size and (places.min() < 0 or places.max() >= array.size):
        raise IndexError(f"expected places in 0..{array.size - 1}, got {places.min()} to {places.max()}")
    out = np.empty(places.size, array.dtype)
    compiled(array, places, out)
    return out
