"""Elements of a tensor at given places: read, and replaced."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .bits import as_unsigned_numpy


@overload
def gather(bits: Tensor, places: NDArray[np.int64]) -> NDArray[Any]: ...


@overload
def gather(bits: Tensor, places: Tensor) -> Tensor: ...


def gather(bits: Tensor, places: Any) -> Any:
    """Read elements of 1-D contiguous bits (`as_bits` dtype) on any device.

    Args:
        bits: the elements.
        places: int64[n], indices; a numpy array, or a tensor on the device of `bits`.

    Returns:
        unsigned[n] on the host for an array, bits[n] on the device for a tensor.

    Raises:
        IndexError: an index is negative or too large (on a GPU the tensor's own check, which ends the process).
    """
    if isinstance(places, Tensor):
        return bits[places]
    if bits.device.type != "cpu":
        return as_unsigned_numpy(bits[torch.from_numpy(places).to(bits.device)].cpu())
    from .prefetch import gather as compiled

    array = as_unsigned_numpy(bits)
    _check(array, places)
    out = np.empty(places.size, array.dtype)
    compiled(array, places, out)
    return out


def put(elements: NDArray[Any] | Tensor, places: Any, values: Any) -> None:
    """Replace elements of a 1-D array, contiguous on the host; each place once.

    Args:
        elements: unsigned[m], or bits[m] on an accelerator; written in place.
        places: int64[n], indices.
        values: elements' dtype [n]; both of the kind and on the device of `elements`.

    Raises:
        IndexError: as in `gather`; nothing was written.
    """
    if isinstance(elements, Tensor):
        elements[places] = values
        return
    from .prefetch import put as compiled

    _check(elements, places)
    compiled(elements, places, np.ascontiguousarray(values))


def _check(array: NDArray[Any], places: NDArray[np.int64]) -> None:
    if places.size and (places.min() < 0 or places.max() >= array.size):
        raise IndexError(f"expected places in 0..{array.size - 1}, got {places.min()} to {places.max()}")
