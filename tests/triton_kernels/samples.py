"""Tensors that the tests of every twin share."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]
SIZES = [0, 1, 255, 256, 257, 5000, 8191, 65536 + 3]
DENSITIES = {"none": 0.0, "one percent": 0.01, "all": 1.0}

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# +0, -0, +inf, -inf, quiet NaN, quiet NaN with a payload, signalling NaN, negative NaN, smallest denormals, 1
SPECIAL = {
    torch.bfloat16: [0, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x7FC5, 0x7F81, 0xFFC1, 0x0001, 0x8001, 0x3F80],
    torch.float16: [0, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0x7E05, 0x7C01, 0xFE01, 0x0001, 0x8001, 0x3C00],
    torch.float32: [
        0,
        1 << 31,
        0x7F800000,
        0xFF800000,
        0x7FC00000,
        0x7FC00005,
        0x7F800001,
        0xFFC00001,
        1,
        (1 << 31) + 1,
    ],
    torch.float8_e4m3fn: [0, 0x80, 0x7F, 0xFF, 0x7E, 0xFE, 0x01, 0x81, 0x38],
    torch.float8_e5m2: [0, 0x80, 0x7C, 0xFC, 0x7E, 0x7D, 0x7F, 0xFD, 0x01, 0x81, 0x3C],
}


def random_bits(size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Elements of `dtype` whose bits are uniform (so NaNs, infinities and denormals occur)."""
    width = torch.empty(0, dtype=dtype).element_size()
    draw = torch.randint(0, 256, (size * width,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return draw.view(dtype)


def changed_copy(t: Tensor, density: float, seed: int = 1) -> Tensor:
    """A copy of a 1-D tensor in which that share of the elements has other bits."""
    generator = torch.Generator().manual_seed(seed)
    bits = t.clone().view(BITS[t.element_size()])
    where = torch.rand(t.shape, generator=generator) < density
    flips = torch.randint(1, 128, t.shape, generator=generator).to(bits.dtype)
    return torch.where(where, bits ^ flips, bits).view(t.dtype)


def special_pairs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Old and new in which every special value becomes every special value, itself included."""
    width = torch.empty(0, dtype=dtype).element_size()
    values = torch.tensor(SPECIAL[dtype], dtype=torch.int64)
    old, new = torch.cartesian_prod(values, values).T
    low = torch.stack([(new >> (8 * byte)) & 255 for byte in range(width)], 1).to(torch.uint8)
    low_old = torch.stack([(old >> (8 * byte)) & 255 for byte in range(width)], 1).to(torch.uint8)
    return low_old.reshape(-1).view(dtype), low.reshape(-1).view(dtype)
