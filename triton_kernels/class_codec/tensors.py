"""The class codec for tensors: the Triton twin on a GPU, the numba twin through numpy on the host."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..bits import BITS_OF_WIDTH, as_unsigned_numpy
from ..placement import on_gpu
from .classes import Classes, Exponent


def encode(old: Tensor, positions: Tensor, values: Tensor, class_map: Classes, exponent: Exponent) -> Tensor:
    """See the package."""
    _check(old, class_map, exponent)
    if positions.dtype != torch.int64 or values.dtype != old.dtype or positions.shape != values.shape:
        raise TypeError(
            f"expected int64 positions and as many {old.dtype} values, got {positions.dtype}{list(positions.shape)} "
            f"and {values.dtype}{list(values.shape)}"
        )
    if on_gpu(old, positions, values):
        from . import gpu

        return gpu.encode(old, positions.contiguous(), values.contiguous(), class_map, exponent)
    from . import encode as encode_arrays

    change = as_unsigned_numpy(positions).view("i8"), as_unsigned_numpy(values)
    return torch.from_numpy(encode_arrays(as_unsigned_numpy(old), *change, class_map, exponent))


def decode(
    data: Tensor,
    n: int,
    old: Tensor | Callable[[Tensor], Tensor],
    class_map: Classes,
    exponent: Exponent,
    dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    """See the package."""
    if isinstance(old, Tensor):
        dtype = old.dtype
        if old.numel() != n:
            raise ValueError(f"expected {n} old elements, got {old.numel()}")
    elif class_map.number != 1 or dtype is None:
        raise TypeError("expected the old elements as a tensor; a function (and dtype) will do for one class only")
    _check(old if isinstance(old, Tensor) else data.new_empty(0, dtype=dtype), class_map, exponent)
    if data.dtype != torch.uint8 or data.dim() != 1:
        raise TypeError(f"expected uint8 data, got {data.dtype}{list(data.shape)}")
    if on_gpu(data, *([old] if isinstance(old, Tensor) else [])):
        from . import gpu

        return gpu.decode(data.contiguous(), n, dtype, old, class_map, exponent)
    from . import decode as decode_arrays

    elements = as_unsigned_numpy(old if isinstance(old, Tensor) else data.new_empty(0, dtype=dtype))
    if isinstance(old, Tensor):
        found = decode_arrays(data.numpy(), n, elements, class_map, exponent)
    else:
        at = old
        found = decode_arrays(
            data.numpy(),
            n,
            lambda positions: as_unsigned_numpy(at(torch.from_numpy(positions))),
            class_map,
            exponent,
            elements.dtype,
        )
    return torch.from_numpy(found[0]), torch.from_numpy(found[1].view(elements.dtype)).view(dtype)


def _check(old: Tensor, class_map: Classes, exponent: Exponent) -> None:
    width = old.element_size()
    if width > 4 or old.dtype != BITS_OF_WIDTH[width] or old.dim() != 1 or not old.is_contiguous():
        raise TypeError(f"expected contiguous uint8, int16 or int32 bits, got {old.dtype}{list(old.shape)}; as_bits(t)")
    class_map.check(width)
    if not (0 <= exponent.shift < 8 * width and 0 < exponent.mask <= 255):
        raise ValueError(f"expected an exponent byte inside {width}-byte elements, got {exponent}")
