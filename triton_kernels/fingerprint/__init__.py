"""A 64-bit fingerprint of weights that knows positions and adds up over shards."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..bits import BITS_DTYPES
from ..box import MAX_RANK, Box, normalise
from ..placement import on_gpu

__all__ = ["change_fingerprint", "check_storage", "fingerprint"]


def fingerprint(bits: Tensor, box: Box | None = None) -> int:
    """Fingerprint the elements of a checkpoint tensor that a storage holds.

    The sum, modulo 2**64, of mix(i) * b_i: i is the flat row-major index of an element in the checkpoint tensor, b_i
    its bits as an unsigned integer, and mix an odd 64-bit hash of i (see `reference`). So it depends on where a value
    stands, the fingerprints of the parts of a tensor add up to that of the whole whatever the sharding, and a change
    of one element moves it by mix(i) * (new - old), never by 0. It guards against faults, not against forgery.

    Args:
        bits: 1-D contiguous bits (`as_bits` dtype) of the storage.
        box: which checkpoint elements lie where in it; None when it is the whole tensor in row-major order.

    Returns:
        An integer in [0, 2**64).

    Raises:
        TypeError: when `bits` is not of a bits dtype.
        ValueError: when it is not 1-D contiguous, or the box is not invertible or leaves the storage.
    """
    box = check_storage(bits, Box.identity(bits.numel()) if box is None else box)
    if box.numel == 0:
        return 0
    if on_gpu(bits):
        from . import gpu

        return gpu.total(bits, box)
    from . import cpu

    return cpu.total(bits, box)


@overload
def change_fingerprint(positions: NDArray[np.int64], old: NDArray[Any], new: NDArray[Any]) -> int: ...


@overload
def change_fingerprint(positions: Tensor, old: Tensor, new: Tensor) -> int: ...


def change_fingerprint(positions: Any, old: Any, new: Any) -> int:
    """By how much changes move a fingerprint: sum of mix(i) * (new_i - old_i) modulo 2**64.

    Args:
        positions: int64[n], flat indices; numpy arrays, or tensors on an accelerator (one synchronisation).
        old: unsigned[n] (bits[n]), the bits that were there.
        new: unsigned[n] (bits[n]), the bits that come.
    """
    if isinstance(positions, Tensor):
        from . import gpu

        return gpu.change_sum(positions, old, new)
    from . import cpu

    return int(cpu.change_sum(positions, old, new))


def check_storage(storage: Tensor, box: Box) -> Box:
    """Return the normalised box after checking that it fits a 1-D bits storage (errors as in `fingerprint`)."""
    if storage.dtype not in BITS_DTYPES:
        raise TypeError(f"expected uint8, int16, int32 or int64 bits, got {storage.dtype}; pass as_bits(storage)")
    if storage.dim() != 1 or not storage.is_contiguous():
        raise ValueError(
            f"expected a 1-D contiguous storage, got shape {tuple(storage.shape)} and strides {storage.stride()}; "
            "pass the flat storage and describe the layout in the box"
        )
    box = normalise(box)
    if len(box.sizes) > MAX_RANK:
        raise ValueError(f"expected at most {MAX_RANK} dimensions after merging, got {box}; split the box")
    if box.numel and box.dst_offset + box.dst_span > storage.numel():
        raise ValueError(
            f"expected a box inside a storage of {storage.numel()} elements, got one that ends at "
            f"{box.dst_offset + box.dst_span}: {box}; the layout map belongs to another storage: trace it again"
        )
    return box
