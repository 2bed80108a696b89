"""Changes are numpy arrays on the host and tensors of bits on an accelerator; the same code runs on either.

Both kinds take `len`, slices and index arrays; what they do not share is here. Which one it is follows from where the
weights are (`triton_kernels.on_gpu`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.triton_kernels import as_unsigned_numpy, on_gpu

Bits = Any
"""Elements by their bits: unsigned numpy array on the host, tensor of an `as_bits` dtype on an accelerator."""
Places = Any
"""int64 numpy array on the host, int64 tensor on an accelerator."""


def elements(bits: Tensor) -> Bits:
    """A tensor of bits in the kind of its place, without a copy."""
    return bits if on_gpu(bits) else as_unsigned_numpy(bits)


def places(positions: Tensor) -> Places:
    """An int64 tensor in the kind of its place, without a copy."""
    return positions if on_gpu(positions) else positions.numpy()


def to_host(array: Bits) -> NDArray[Any]:
    """Bits as an unsigned numpy array; a copy where they are on an accelerator."""
    return as_unsigned_numpy(array.cpu()) if isinstance(array, Tensor) else array


def to_device(array: Bits, device: torch.device) -> Tensor:
    """Bits or int64 places as a tensor of their width on `device`; a copy where they are not there."""
    if isinstance(array, Tensor):
        return array.to(device)
    return torch.from_numpy(array.view(f"i{array.itemsize}" if array.itemsize > 1 else "u1")).to(device)


def join(parts: Sequence[Any]) -> Any:
    """The arrays one after another; a single one as it is."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat(list(parts)) if isinstance(parts[0], Tensor) else np.concatenate(parts)


def order(positions: Places) -> Places:
    """What sorts them: int64[n]."""
    return torch.argsort(positions) if isinstance(positions, Tensor) else np.argsort(positions)


def like(array: Bits, content: bytes) -> Bits:
    """uint8[n] of the kind and on the device of `array`."""
    if isinstance(array, Tensor):
        return torch.tensor(list(content), dtype=torch.uint8, device=array.device)
    return np.frombuffer(content, np.uint8)
