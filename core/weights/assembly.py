"""Put ranges back together: units from their ranges, checkpoint tensors from the units of one or several senders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from slipstream.core.weights.tensors import TensorSpec
from slipstream.core.weights.units import WireUnit
from slipstream.core.weights.wire import CorruptFrameError, Range
from slipstream.triton_kernels import as_bits


class UnitAssembly:
    """Units that travel in full, as their ranges arrive in order. Memory: the units begun and not finished."""

    def __init__(self, units: Sequence[WireUnit]) -> None:
        self._units = units
        self._begun: dict[int, tuple[torch.Tensor, int]] = {}  # unit -> (its bytes, how many are there)

    def add(self, part: Range) -> torch.Tensor | None:
        """Take a range; return uint8[numel * width], the whole unit, once it is complete.

        Raises:
            CorruptFrameError: it does not start where the last one ended.
        """
        unit = self._units[part.unit]
        whole, count = self._begun.pop(part.unit, (None, 0))
        if whole is None:
            whole = torch.empty(unit.numel * unit.width, dtype=torch.uint8)
        if part.first * unit.width != count:
            raise CorruptFrameError(
                f"unit {part.unit}: expected elements from {count // unit.width} on, got {part.first}"
            )
        whole[count : count + part.values.nbytes] = torch.from_numpy(np.array(part.values).view(np.uint8))
        count += part.values.nbytes
        if count == whole.numel():
            return whole
        self._begun[part.unit] = (whole, count)
        return None

    def begun(self) -> list[int]:
        """Units that are still incomplete."""
        return list(self._begun)


class TensorAssembly:
    """Checkpoint tensors for the engine's own loader, as their units arrive. Memory: the tensors not finished."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._specs = specs
        self._begun: dict[int, tuple[torch.Tensor, int]] = {}  # tensor -> (flat, how many elements are there)

    def add(self, unit: WireUnit, whole: torch.Tensor) -> tuple[int, torch.Tensor] | None:
        """Take a complete unit of a `by_loader` tensor; return (index, the tensor on the host) once it is complete."""
        tensor = unit.tensors[0]
        spec = self._specs[tensor]
        if unit.numel == spec.numel:
            return tensor, whole.view(spec.torch_dtype).view(spec.shape)
        flat, count = self._begun.pop(tensor, (None, 0))
        if flat is None:
            flat = torch.empty(spec.numel, dtype=spec.torch_dtype)
        source = as_bits(whole.view(spec.torch_dtype))
        for box in (piece.as_box() for piece in unit.pieces):
            target = as_bits(flat).as_strided(box.sizes, box.dst_strides, box.dst_offset)
            target.copy_(source.as_strided(box.sizes, box.src_strides, box.src_offset))
        count += unit.numel
        if count == spec.numel:
            return tensor, flat.view(spec.shape)
        self._begun[tensor] = (flat, count)
        return None

    def begun(self) -> list[int]:
        """Tensors that are still incomplete."""
        return list(self._begun)
