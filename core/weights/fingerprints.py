"""Expected fingerprints of what each engine layout holds, carried forward in O(changes) on the trainer side.

The fingerprint is linear in the elements (sum of mix(index) * bits mod 2^64), so a change contributes
mix(index) * (new - old) to every layout piece that covers the index.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.core.weights.layout import LayoutMap, TensorLayout, source_box
from slipstream.core.weights.wire.frame import I64
from slipstream.triton_kernels import Box, fingerprint
from slipstream.triton_kernels.fingerprint.reference import mix

MASK = 2**64 - 1
U64 = NDArray[np.uint64]


def covers(box: Box, positions: I64) -> NDArray[np.bool_]:
    """bool[n]: which flat checkpoint indices lie in `box`."""
    rest = positions - box.src_offset
    inside = rest >= 0
    for size, stride in zip(box.sizes, box.src_strides, strict=True):
        step = rest // stride
        inside &= step < size
        rest = rest - step * stride
    covered: NDArray[np.bool_] = inside & (rest == 0)
    return covered


def tensor_fingerprint(layout: TensorLayout, bits: torch.Tensor) -> int:
    """Fingerprint of the elements of a checkpoint tensor that `layout` holds, each piece counted.

    Args:
        layout: one tensor's layout in a worker.
        bits: int[numel], the flat integer bits of the whole checkpoint tensor in the engine's dtype.
    """
    return sum(fingerprint(bits, source_box(piece.as_box())) for piece in layout.pieces) & MASK


def change_fingerprint(layout: TensorLayout, positions: I64, old: U64, new: U64) -> int:
    """What changing `positions` from `old` to `new` adds to `tensor_fingerprint`, mod 2^64."""
    if not layout.pieces:
        return 0
    terms = mix(positions.astype(np.uint64)) * (new - old)
    total = 0
    for piece in layout.pieces:
        total += int(terms[covers(piece.as_box(), positions)].sum(dtype=np.uint64))
    return total & MASK


def held_fingerprint(layout: LayoutMap, tensor: int) -> int:
    """Fingerprint recomputed from the engine's memory."""
    return sum(fingerprint(layout.storages[p.storage], p.as_box()) for p in layout.tensors[tensor].pieces) & MASK
