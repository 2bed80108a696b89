"""Boxes the tests of every twin share: the ways engines lay out a checkpoint tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.triton_kernels import Box

ROWS, COLUMNS = 48, 50

# name: (box, elements of the storage)
LAYOUTS: dict[str, tuple[Box, int]] = {
    "whole": (Box.identity(ROWS * COLUMNS), ROWS * COLUMNS),
    "rows 12..24 at 100": (Box(12 * COLUMNS, 100, (12, COLUMNS), (COLUMNS, 1), (COLUMNS, 1)), 800),
    "columns 10..35": (Box(10, 0, (ROWS, 25), (COLUMNS, 1), (25, 1)), ROWS * 25),
    "columns 32..48, padded rows": (Box(32, 64, (ROWS, 16), (COLUMNS, 1), (32, 1)), 64 + ROWS * 32),
    "transposed": (Box(0, 0, (ROWS, COLUMNS), (COLUMNS, 1), (1, ROWS)), ROWS * COLUMNS),
    "rotary halves interleaved": (Box(0, 0, (6, 2, 4, COLUMNS), (400, 200, 50, 1), (400, 50, 100, 1)), ROWS * COLUMNS),
    "one element": (Box(77, 3, (1,), (1,), (1,)), 9),
    "every third column of a corner": (Box(52, 1, (9, 6), (COLUMNS, 3), (12, 2)), 200),
    "six dimensions": (
        Box(0, 0, (2, 2, 2, 2, 2, 2), (1200, 600, 250, 100, 40, 1), (1, 32, 2, 16, 4, 8)),
        64,
    ),
    "empty": (Box(5, 0, (0, 4), (4, 1), (4, 1)), 10),
}


def storage_of(checkpoint: Tensor, box: Box, numel: int, fill: int = 1) -> Tensor:
    """A storage that holds the box of a checkpoint tensor's bits, and `fill` elsewhere."""
    storage = torch.full((numel,), fill, dtype=checkpoint.dtype)
    if box.numel:
        source = checkpoint.as_strided(box.sizes, box.src_strides, box.src_offset)
        storage.as_strided(box.sizes, box.dst_strides, box.dst_offset).copy_(source)
    return storage
