"""Write changes straight into the storage an engine serves from (WeightBridge's layout-mapped apply, arXiv 2609.25442).

No dense staging tensor and no marker values: time and extra memory follow the number of changes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..bits import as_unsigned_numpy
from ..box import Box
from ..fingerprint import check_storage
from ..packed import PackedChanges
from ..placement import on_gpu
from ..restrict import restrict
from .applied import Applied, AppliedPacked
from .units import Places, UnitsApplied

__all__ = ["Applied", "AppliedPacked", "Places", "UnitsApplied", "scatter_changes", "scatter_packed", "undo"]


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


def scatter_packed(storage: Tensor, box: Box, changes: PackedChanges) -> Applied | AppliedPacked:
    """`scatter_changes` of packed changes, on the host; elements that move go on from what is in the storage.

    Args:
        storage, box: as `scatter_changes` takes them.
        changes: of elements of the storage's width; in order, as a decoder that checks made them.

    Returns:
        What was written, enough to take it back with `undo`.

    Raises:
        ValueError: as `scatter_changes`, and when an element would move out of its type; the storage is as it was.
    """
    box = check_storage(storage, box)
    from . import cpu

    if box.src_strides == box.dst_strides == (1,):
        return cpu.write_run_packed(storage, box, changes)
    positions = changes.positions()
    taken, places = restrict(positions, box)
    assert not isinstance(taken, slice), "the box shifts"
    values = torch.from_numpy(changes.values(as_unsigned_numpy(storage)[places], taken)).view(storage.dtype)
    return scatter_changes(storage, box, torch.from_numpy(positions[taken]), values)


def undo(storage: Tensor, applied: Applied | AppliedPacked) -> None:
    """Put back the values that `scatter_changes` overwrote. Take back several in reverse order.

    Args:
        storage: the storage that was written to.
        applied: what `scatter_changes` or `scatter_packed` returned for it.

    Raises:
        TypeError: when the storage has another dtype than the saved values.
        ValueError: when the devices differ, or the storage is not 1-D contiguous or too short for the saved indices.
    """
    box = check_storage(storage, Box.identity(storage.numel()))
    if applied.old_values.dtype != storage.dtype:
        raise TypeError(f"expected a storage of {applied.old_values.dtype}, got {storage.dtype}; pass the one written")
    index = applied.dst_index
    on_gpu(storage, index, applied.old_values)
    if index.numel() == 0:
        return
    end = int(index.max()) + 1
    if end > box.numel:
        raise ValueError(f"expected a storage of at least {end} elements, got {box.numel}; pass the one written")
    storage[index] = applied.old_values
