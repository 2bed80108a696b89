"""What a worker holds of a unit: read from the engine's own memory, in the order of the unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slipstream.core.weights.layout import Piece
from slipstream.core.weights.units import WireUnit
from slipstream.core.weights.wire import Bits, Places, bits_dtype
from slipstream.core.weights.wire.arrays import elements, join
from slipstream.triton_kernels import BITS_OF_WIDTH, Box, fingerprint, gather, restrict

MASK = 2**64 - 1


class HeldUnit(NamedTuple):
    """`OldValues` of a unit in engine memory; nothing is copied before it is asked for."""

    unit: WireUnit
    storages: Sequence[torch.Tensor]
    """Flat integer bits of the engine's storages."""

    @property
    def numel(self) -> int:
        return self.unit.numel

    @property
    def dtype(self) -> str:
        return self.unit.dtype

    @property
    def copies(self) -> bool:
        pieces = self._distinct()
        return len(pieces) > 1 or pieces[0].as_box().dst_strides != (1,)

    def all(self) -> Bits:
        return join([self._contents(piece.storage, piece.as_box()) for piece in self._distinct()])

    def at(self, positions: Places) -> Bits:
        values: Any
        if isinstance(positions, Tensor):
            values = positions.new_empty(len(positions), dtype=BITS_OF_WIDTH[self.unit.width])
        else:
            values = np.empty(positions.size, bits_dtype(self.unit.width))
        for piece in self._distinct():
            taken, places = restrict(positions, piece.as_box())
            values[taken] = gather(self.storages[piece.storage], places)
        return values

    def fingerprint(self) -> int:
        """Recomputed from memory; every place counts, also where two hold the same part."""
        pieces = () if self.unit.by_loader else self.unit.pieces
        return sum(fingerprint(self.storages[piece.storage], piece.as_box()) for piece in pieces) & MASK

    def _distinct(self) -> list[Piece]:
        """One piece for each part, in order of the unit."""
        return list({piece.as_box().src_offset: piece for piece in self.unit.pieces}.values())

    def _contents(self, storage: int, box: Box) -> Bits:
        view = self.storages[storage].as_strided(box.sizes, box.dst_strides, box.dst_offset)
        return elements(view.reshape(-1))
