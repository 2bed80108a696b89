"""Round fp32 masters to the weights that are served, in place, and list what changed: one pass instead of three.

Where the trainer's cast is ours, it needs no second copy of the weights to compare with: what was served is still in
the destination.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..bits import as_bits
from ..placement import on_gpu
from .rounding import HALVES, CastChanges

__all__ = ["HALVES", "CastChanges", "cast_extract"]


def cast_extract(master: Tensor, weights: Tensor) -> CastChanges:
    """Round `master` to the type of `weights`, write what differs into it, and list that.

    Rounding is to nearest, ties to even, on integers: for everything but NaN the bits that `master.to(weights.dtype)`
    has. A NaN stays a NaN with its sign and upper payload bits, made quiet. (What torch makes of one is not one thing:
    0x7FC0 or 0xFFFF for bf16 on a CPU, depending on the loop; 0x7FFF on CUDA. So the weights that this function wrote
    must be the weights that are compared and served.)

    Args:
        master: fp32, contiguous.
        weights: bf16 or fp16, contiguous, of its shape and on its device; written in place where bits differ.

    Returns:
        The changes, on the device of `weights`.

    Raises:
        TypeError: for other types.
        ValueError: when shapes or devices differ, or one is not contiguous.

    Memory beside the result: on the host as much again as the result; on a GPU up to three eighths of `weights` and at
    most 2**28 elements' worth of it.
    """
    if master.dtype != torch.float32 or weights.dtype not in HALVES:
        raise TypeError(f"expected a float32 master and bf16 or fp16 weights, got {master.dtype} and {weights.dtype}")
    if master.shape != weights.shape or not master.is_contiguous() or not weights.is_contiguous():
        raise ValueError(
            f"expected contiguous master and weights of one shape, got {tuple(master.shape)} with strides "
            f"{master.stride()} and {tuple(weights.shape)} with strides {weights.stride()}; cast a view by itself"
        )
    bits, out, half = as_bits(master).view(-1), as_bits(weights).view(-1), weights.dtype == torch.float16
    if on_gpu(bits, out):
        from . import gpu

        return gpu.cast_extract(bits, out, half)
    from . import cpu

    return cpu.cast_extract(bits, out, half)
