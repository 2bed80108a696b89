"""Compare two versions of a tensor and list what changed (SparseRL-Sync's compare-extract, arXiv 2605.07330)."""

from __future__ import annotations

from torch import Tensor

from ..bits import as_bits
from ..placement import on_gpu

__all__ = ["extract_changes"]


def extract_changes(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """List the elements whose bits differ between `old` and `new`.

    Bits are compared, never floats: 0.0 -> -0.0 is a change, a NaN that stays the same NaN is not.

    Args:
        old: the version the receiver holds, any shape and any dtype that `as_bits` takes.
        new: the version it should get; same shape, dtype and device. Both are read once. One that is not contiguous is
            first copied to row-major order: one more read and write of it, and its size in temporary memory.

    Returns:
        positions: int64[n], ascending, flat row-major indices of the changed elements.
        values: bits[n] (`as_bits` dtype), the elements of `new` there.
        Both on the device of `new`.

    Raises:
        ValueError: when shapes or devices differ.
        TypeError: when dtypes differ, or have no bits (see `as_bits`).

    Memory beside the result: on the host as much again as the result; on a GPU up to a quarter of the tensor and at
    most 2**28 elements' worth of it.
    """
    if old.shape != new.shape:
        raise ValueError(f"expected old and new of one shape, got {tuple(old.shape)} and {tuple(new.shape)}; reseed")
    if old.dtype != new.dtype:
        raise TypeError(f"expected old and new of one dtype, got {old.dtype} and {new.dtype}; cast before comparing")
    old_bits, new_bits = as_bits(old), as_bits(new)
    gpu_side = on_gpu(old_bits, new_bits)
    old_bits, new_bits = old_bits.contiguous().view(-1), new_bits.contiguous().view(-1)
    if gpu_side:
        from . import gpu

        return gpu.extract(old_bits, new_bits)
    from . import cpu

    return cpu.extract(old_bits, new_bits)
