"""The specification of the scatter, in numpy.

for (i, v) in zip(positions, values):               # strictly ascending i
    r = i - src_offset;  s = dst_offset;  inside = r >= 0
    for j in range(rank):                           # descending source strides
        k = r // src_strides[j]
        inside = inside and k < sizes[j]
        r = r - k * src_strides[j];  s = s + k * dst_strides[j]
    if inside and r == 0:
        emit (s, storage[s]);  delta += mix(i) * (v - storage[s]) mod 2**64;  storage[s] = v
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..bits import as_unsigned_numpy
from ..box import Box
from ..fingerprint.reference import mix
from .applied import Applied, order_error


def locate(box: Box, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Destination index of each checkpoint position, or -1 where it lies outside the normalised box."""
    rest = positions - box.src_offset
    inside = rest >= 0
    dst = np.full(positions.shape, box.dst_offset, np.int64)
    for size, src_stride, dst_stride in zip(box.sizes, box.src_strides, box.dst_strides, strict=True):
        k = rest // src_stride
        inside &= k < size
        rest = rest - k * src_stride
        dst += k * dst_stride
    return np.where(inside & (rest == 0), dst, -1)


def write(storage: Tensor, box: Box, positions: Tensor, values: Tensor) -> Applied:
    """Apply changes to a 1-D contiguous host bits storage through a normalised box that fits it."""
    at, data, new = positions.numpy(), as_unsigned_numpy(storage), as_unsigned_numpy(values)
    if at.size and (at[0] < 0 or (at[1:] <= at[:-1]).any()):
        raise order_error()
    dst = locate(box, at)
    hit = dst >= 0
    dst, at, new = dst[hit], at[hit], new[hit]
    old = data[dst]
    delta = int((mix(at) * (new.astype(np.uint64) - old.astype(np.uint64))).sum(dtype=np.uint64))
    data[dst] = new
    return Applied(torch.from_numpy(dst), torch.from_numpy(old).view(storage.dtype), delta)
