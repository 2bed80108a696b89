"""Level 0 of the wire format: Elias-Fano positions and absolute values, in independent blocks of 65,536 elements.

Idempotent (a block may be applied twice), needs no old value at the receiver, and costs 8 to 10 bits a position at the
0.5-2 % densities of RL updates. `reference` specifies the bytes.

Changes come as numpy arrays of unsigned elements, or as tensors of bits (see `as_bits`) on one device; the result is of
the same kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..bits import BITS_DTYPES, as_unsigned_numpy
from ..errors import CorruptBlockError
from ..packed import PackedChanges, PackedUnits
from ..placement import on_gpu
from .block import BLOCK, HEADER

__all__ = ["BLOCK", "HEADER", "CorruptBlockError", "decode", "encode", "unpack", "unpack_all"]


@overload
def encode(
    positions: NDArray[np.int64], values: NDArray[Any], numel: int, old: Callable[[], NDArray[Any]]
) -> NDArray[np.uint8]: ...


@overload
def encode(positions: Tensor, values: Tensor, numel: int, old: Callable[[], Tensor]) -> Tensor: ...


def encode(positions: Any, values: Any, numel: int, old: Callable[[], Any]) -> Any:
    """Encode the changes of a unit.

    Args:
        positions: int64[changes], strictly ascending, below `numel` (checked on a GPU; the host trusts them).
        values: the new elements there, of 1, 2, 4 or 8 bytes.
        numel: elements of the unit.
        old: returns all its old elements (contiguous); called only when a block is smaller as a copy.

    Returns:
        uint8[size], the stored blocks one after another; empty when nothing changed.
    """
    if not isinstance(positions, Tensor):
        from . import cpu

        return cpu.encode(positions, values, numel, old)
    if positions.dtype != torch.int64 or values.dtype not in BITS_DTYPES or positions.shape != values.shape:
        raise TypeError(
            f"expected int64 positions and as many bits, got {positions.dtype}{list(positions.shape)} and "
            f"{values.dtype}{list(values.shape)}; pass as_bits(values)"
        )
    if on_gpu(positions, values):
        from . import gpu

        return gpu.encode(positions.contiguous(), values.contiguous(), numel, old)
    from . import cpu

    change = as_unsigned_numpy(positions).view("i8"), as_unsigned_numpy(values)
    return torch.from_numpy(cpu.encode(*change, numel, lambda: as_unsigned_numpy(old())))


@overload
def decode(data: NDArray[np.uint8], numel: int, dtype: np.dtype[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]: ...


@overload
def decode(
    data: Tensor, numel: int, dtype: torch.dtype, host: NDArray[np.uint8] | None = None
) -> tuple[Tensor, Tensor]: ...


def decode(data: Any, numel: int, dtype: Any, host: Any = None) -> Any:
    """Inverse of `encode`.

    Args:
        data: uint8[size].
        host: the same bytes on the host, where a tensor on an accelerator was copied from there; the headers are read
            from it, and from a copy of `data` otherwise.
        numel: elements of the unit.
        dtype: of its elements as they come out: unsigned for arrays, bits for tensors.

    Returns:
        positions int64[changes] strictly ascending, values [changes]. A copied block gives all its elements.

    Raises:
        CorruptBlockError: `data` is not a run of valid blocks of such a unit.
    """
    if not isinstance(data, Tensor):
        from . import cpu

        return cpu.decode(data, numel, dtype)
    if data.dtype != torch.uint8 or data.dim() != 1 or dtype not in BITS_DTYPES:
        raise TypeError(f"expected uint8 data and bits, got {data.dtype}{list(data.shape)} and {dtype}")
    if on_gpu(data):
        from . import gpu

        return gpu.decode(data.contiguous(), numel, dtype, host)
    from . import cpu

    unsigned = as_unsigned_numpy(torch.empty(0, dtype=dtype)).dtype
    positions, values = cpu.decode(data.contiguous().numpy(), numel, unsigned)
    signed = torch.empty(0, dtype=dtype).numpy().dtype
    return torch.from_numpy(positions), torch.from_numpy(values.view(signed))


def unpack(data: NDArray[np.uint8], numel: int, dtype: np.dtype[Any]) -> PackedChanges:
    """`decode` of arrays into packed changes: 4 bytes for each change of bf16 instead of 10.

    Raises:
        CorruptBlockError: as `decode`.
    """
    from . import cpu

    return cpu.unpack(data, numel, dtype)


def unpack_all(data: NDArray[np.uint8], sections: NDArray[np.int64], dtype: np.dtype[Any]) -> PackedUnits:
    """`unpack` of several units at once.

    Args:
        data: uint8[size], which has a message for each.
        sections: int64[units, 3]: where the message begins, its bytes, and the elements of the unit.
        dtype: of the elements, unsigned.

    Raises:
        CorruptBlockError: as `decode`, for any of them.
    """
    from . import cpu

    return cpu.unpack_all(data, sections, dtype)
