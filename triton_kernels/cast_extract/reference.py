"""The specification of the fused cast, in numpy.

out = []
for i in range(n):
    new = round(master[i])
    if new != weights[i]:                                        # bits
        out.append((i, new, weights[i])); weights[i] = new

round, on x = the bits of a float32, s = x >> 16 & 0x8000, a = x & 0x7FFFFFFF:
    bf16:  NaN (a > 0x7F800000):  x >> 16 | 0x40
           else (x + 0x7FFF + (x >> 16 & 1)) >> 16
    fp16:  NaN:                   s | 0x7E00 | (a >> 13 & 0x3FF)
           a >= 0x47800000:       s | 0x7C00                     # 65536 and more, infinity
           a >= 0x38800000:       s | (a - 0x38000000 + 0xFFF + (a >> 13 & 1)) >> 13
           else, a multiple m = a & 0x7FFFFF | 0x800000 of 2**(e - 150), e = a >> 23; shift = min(126 - e, 25):
                                  s | (m + 2**(shift - 1) - 1 + (m >> shift & 1)) >> shift
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..bits import as_unsigned_numpy
from .rounding import CastChanges


def to_bf16(x: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Round the bits of float32."""
    wide = x.astype(np.int64)
    rounded = (wide + 0x7FFF + (wide >> 16 & 1)) >> 16
    return np.where((wide & 0x7FFFFFFF) > 0x7F800000, wide >> 16 | 0x40, rounded).astype(np.uint16)


def to_fp16(x: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Round the bits of float32."""
    wide = x.astype(np.int64)
    sign, a = wide >> 16 & 0x8000, wide & 0x7FFFFFFF
    m, shift = a & 0x7FFFFF | 0x800000, np.clip(126 - (a >> 23), 1, 25)
    small = (m + (np.int64(1) << (shift - 1)) - 1 + (m >> shift & 1)) >> shift
    normal = (a - 0x38000000 + 0xFFF + (a >> 13 & 1)) >> 13
    rounded = np.where(a >= 0x47800000, 0x7C00, np.where(a >= 0x38800000, normal, small))
    rounded = np.where(a > 0x7F800000, 0x7E00 | (a >> 13 & 0x3FF), rounded)
    return np.asarray(sign | rounded).astype(np.uint16)


def cast_extract(master: Tensor, weights: Tensor, half: bool) -> CastChanges:
    """Round 1-D int32 bits into 1-D int16 bits on the host, and list what differed."""
    target: NDArray[Any] = as_unsigned_numpy(weights)
    new = (to_fp16 if half else to_bf16)(as_unsigned_numpy(master))
    at = np.flatnonzero(new != target).astype(np.int64)
    old = target[at]
    target[at] = new[at]
    return CastChanges(*(torch.from_numpy(a) for a in (at, new[at].view(np.int16), old.view(np.int16))))
