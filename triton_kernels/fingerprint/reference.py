"""The specification of the fingerprint, in numpy.

    mix(i) = ((x ^ (x >> 32)) * 0xD6E8FEB86659FD93 mod 2**64) | 1   with   x = (i + 1) * 0x9E3779B97F4A7C15 mod 2**64

    total = 0
    for k in all elements of the box:
        i = src_offset + sum k_j * src_strides[j]
        s = dst_offset + sum k_j * dst_strides[j]
        total = (total + mix(i) * unsigned(storage[s])) mod 2**64

mix is odd, hence invertible modulo 2**64: no single change leaves the total as it was.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..bits import as_unsigned_numpy
from ..box import Box

GOLDEN = 0x9E3779B97F4A7C15
SPREAD = 0xD6E8FEB86659FD93
MODULUS = 1 << 64


def mix(index: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The multiplier of each flat checkpoint index."""
    x = (index.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    return ((x ^ (x >> np.uint64(32))) * np.uint64(SPREAD)) | np.uint64(1)


def places(box: Box) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Source and destination index of every element of the box, in the order of k."""
    src, dst = np.array([box.src_offset], np.int64), np.array([box.dst_offset], np.int64)
    for size, src_stride, dst_stride in zip(box.sizes, box.src_strides, box.dst_strides, strict=True):
        step = np.arange(size, dtype=np.int64)
        src = (src[:, None] + step * src_stride).reshape(-1)
        dst = (dst[:, None] + step * dst_stride).reshape(-1)
    return src, dst


def total(bits: Tensor, box: Box) -> int:
    """The fingerprint of a 1-D host bits storage seen through a box."""
    src, dst = places(box)
    return int((mix(src) * as_unsigned_numpy(bits)[dst].astype(np.uint64)).sum(dtype=np.uint64))
