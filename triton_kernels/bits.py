"""Tensors as raw bits: an integer view of the same element width, without a copy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BITS_OF_WIDTH: dict[int, torch.dtype] = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer dtype that stands for the bits of an element, by its width in bytes."""

BITS_DTYPES: frozenset[torch.dtype] = frozenset(BITS_OF_WIDTH.values())

_UNSIGNED_OF_WIDTH: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_WHOLE_BYTES = re.compile(r"bool|u?int(8|16|32|64)|b?float16|float(32|64)|float8_\w+")


def as_bits(t: Tensor) -> Tensor:
    """View a tensor as the integers that hold its bits.

    Args:
        t: any strided tensor of bool, an integer type, fp8, fp16, bf16, fp32 or fp64, any shape, strides and device.

    Returns:
        A detached view (no copy, same shape and strides): uint8, int16, int32 or int64 for 1, 2, 4 or 8 bytes an
        element. Writing to it writes to `t`.

    Raises:
        TypeError: for complex, quantised, packed sub-byte and sparse tensors, whose elements are not one integer each.
    """
    name = str(t.dtype).removeprefix("torch.")
    if t.layout is not torch.strided or not _WHOLE_BYTES.fullmatch(name):
        raise TypeError(
            f"expected a strided tensor of bool, integer, fp8, fp16, bf16, fp32 or fp64 elements, got {t.dtype} in "
            f"layout {t.layout}; pass the parts that have one value per 1, 2, 4 or 8 bytes "
            "(torch.view_as_real for complex, int_repr() and the scales for quantised, a uint8 view for packed types)"
        )
    return t.detach().view(BITS_OF_WIDTH[t.element_size()])


def as_unsigned_numpy(bits: Tensor) -> NDArray[Any]:
    """View host bits as a numpy array of the unsigned type of the same width (no copy, same shape and strides).

    Args:
        bits: what `as_bits` returned, on the CPU.

    Raises:
        TypeError: when `bits` is not of a bits dtype or not on the CPU.
    """
    if bits.dtype not in BITS_DTYPES or bits.device.type != "cpu":
        raise TypeError(
            "expected uint8, int16, int32 or int64 bits on cpu, "
            f"got {bits.dtype} on {bits.device}; use as_bits(t).cpu()"
        )
    array: NDArray[Any] = bits.detach().numpy()
    return array.view(_UNSIGNED_OF_WIDTH[bits.element_size()])
