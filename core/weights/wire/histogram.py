"""What a class map is fitted on: how often elements of each exponent change, and how far they move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.core.weights.wire.arrays import Bits, Places, to_host
from slipstream.triton_kernels.class_codec import Exponent
from slipstream.triton_kernels.class_codec.reference import monotone

RUN = 4096
"""Elements that are sampled together; long enough to be read at full speed."""
SAMPLE = 3000
"""Changes a sample should have: with 700, rare classes were lost; with more, nothing was gained."""

I64 = NDArray[np.int64]


def stride_of(changes: int) -> int:
    """One run of how many to sample, for a sync of that many changes; odd, so as not to walk along the rows."""
    return (max(1, changes // SAMPLE) - 1) | 1


@dataclass(frozen=True)
class Histogram:
    """Counts by exponent byte; additive over parts."""

    width: int
    """Bytes an element."""
    elements: I64
    """int64[256]."""
    changes: I64
    """int64[256], of those elements."""
    lengths: I64
    """int64[256, 8 * width]: sum over the changes of the unary length, for each code order."""
    residual: I64
    """int64[256, 8 * width]: sum over the changes of the residual bits, for each code order."""

    def __add__(self, other: Histogram) -> Histogram:
        """Counts of both.

        Raises:
            ValueError: of elements of different widths.
        """
        if self.width != other.width:
            raise ValueError(f"expected elements of one width, got {self.width} and {other.width} bytes")
        return Histogram(
            self.width,
            self.elements + other.elements,
            self.changes + other.changes,
            self.lengths + other.lengths,
            self.residual + other.residual,
        )

    @classmethod
    def measure(
        cls,
        old: Bits,
        positions: Places,
        values: Bits,
        exponent: Exponent,
        stride: int = 1,
        first: int = 0,
    ) -> Histogram:
        """Count one run of `RUN` elements in every `stride` of a part.

        On an accelerator the elements are counted there; the sampled changes come to the host, and 2 kB a run.

        Args:
            old, positions, values, exponent: as `class_codec.encode` takes them.
            stride: `stride_of` the changes of the whole sync.
            first: elements of the sync before this part, so that runs are chosen across parts.
        """
        elements = np.zeros(256, np.int64)
        begin, end = -(-first // RUN), -(-(first + len(old)) // RUN)
        runs = {first // RUN, *range(-(-begin // stride) * stride, end, stride)}
        for run in runs if len(old) else ():
            if run % stride == 0:
                part = old[max(0, run * RUN - first) : (run + 1) * RUN - first]
                elements += _count(part, exponent)
        chosen = (positions + first) // RUN % stride == 0
        before, after = to_host(old[positions[chosen]]), to_host(values[chosen])
        of_change = _bytes(before, exponent)
        moved = monotone(after.astype(np.int64), old.itemsize) - monotone(before.astype(np.int64), old.itemsize)
        magnitudes = np.abs(moved) - 1
        lengths, residual = np.zeros((2, 256, 8 * old.itemsize), np.int64)
        for order in range(8 * old.itemsize):
            length = np.frexp(magnitudes >> order)[1]  # the bit length: exact below 2**53
            lengths[:, order] = np.bincount(of_change, length, 256)
            residual[:, order] = np.bincount(of_change, order + np.maximum(length - 1, 0), 256)
        return cls(old.itemsize, elements, np.bincount(of_change, minlength=256), lengths, residual)


def _count(part: Bits, exponent: Exponent) -> I64:
    if isinstance(part, Tensor):
        return torch.bincount(part.int() >> exponent.shift & exponent.mask, minlength=256).cpu().numpy()
    return np.bincount(_bytes(part, exponent), minlength=256)


def _bytes(bits: NDArray[Any], exponent: Exponent) -> NDArray[Any]:
    return (bits >> exponent.shift & exponent.mask).astype(np.int64)
