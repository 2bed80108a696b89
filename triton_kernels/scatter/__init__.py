"""Write changes straight into the storage an engine serves from (WeightBridge's layout-mapped apply, arXiv 2609.25442).

No dense staging tensor and no marker values: time and extra memory follow the number of changes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..box import Box
from ..fingerprint import check_storage
from ..placement import on_gpu
from .applied import Applied

__all__ = ["Applied", "scatter_changes", "undo"]


def scatter_changes(storage: Tensor, box: Box, positions: Tensor, values: Tensor) -> Applied:
    """Apply the changes that lie in a box to a storage, in place, keeping what they overwrite.

    Changes outside the box belong to other shards and are skipped. Everything is checked before the first write.

    Args:
        storage: 1-D contiguous bits (`as_bits` dtype) of the destination, written in place.
        box: which elements of the checkpoint tensor lie where in it.
        positions: int64[n], strictly ascending flat indices in the checkpoint tensor.
        values: bits[n], the new elements, of the storage's dtype; both on its device.

    Returns:
        What was written (m <= n changes), enough to take it back with `undo`.

    Raises:
        TypeError: when a dtype is not as above.
        ValueError: when shapes differ, the box is not invertible or leaves the storage, devices differ, or positions
            are negative, repeated or out of order.
    """
    box = check_storage(storage, box)
    if values.dtype != storage.dtype or positions.dtype != torch.int64:
        raise TypeError(
            f"expected int64 positions and {storage.dtype} values, got {positions.dtype} and {values.dtype}; "
            "pass as_bits(values) of the storage's own element type"
        )
    if positions.dim() != 1 or positions.shape != values.shape:
        raise ValueError(
            f"expected 1-D positions and values of one length, got {tuple(positions.shape)} and {tuple(values.shape)}; "
            "flatten both"
        )
    if on_gpu(storage, positions, values):
        from . import gpu

        return gpu.write(storage, box, positions.contiguous(), values.contiguous())
    from . import cpu

    return cpu.write(storage, box, positions.contiguous(), values.contiguous())


def undo(storage: Tensor, applied: Applied) -> None:
    """Put back the values that `scatter_changes` overwrote. Take back several in reverse order.

    Args:
        storage: the storage that was written to.
        applied: what `scatter_changes` returned for it.

    Raises:
        TypeError: when the storage has another dtype than the saved values.
        ValueError: when the devices differ, or the storage is not 1-D contiguous or too short for the saved indices.
    """
    box = check_storage(storage, Box.identity(storage.numel()))
    if applied.old_values.dtype != storage.dtype:
        raise TypeError(f"expected a storage of {applied.old_values.dtype}, got {storage.dtype}; pass the one written")
    on_gpu(storage, applied.places, applied.old_values)
    if applied.places.numel() == 0:
        return
    index = applied.dst_index
    end = int(index.max()) + 1
    if end > box.numel:
        raise ValueError(f"expected a storage of at least {end} elements, got {box.numel}; pass the one written")
    storage[index] = applied.old_values
