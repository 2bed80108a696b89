"""Affine maps from a checkpoint tensor to the storage that holds a part of it."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

MAX_RANK = 6
"""Most dimensions a box may keep after `normalise`; the device kernels take that many."""


class Box(NamedTuple):
    """Where a rectangular part of a checkpoint tensor lies in some storage.

    Element k = (k_0, .., k_{d-1}), 0 <= k_j < sizes[j], is element `src_offset + sum k_j * src_strides[j]` of the
    contiguous checkpoint tensor (flat, row-major) and element `dst_offset + sum k_j * dst_strides[j]` of the
    destination storage (flat). All numbers count elements, not bytes.
    """

    src_offset: int
    dst_offset: int
    sizes: tuple[int, ...]
    src_strides: tuple[int, ...]
    dst_strides: tuple[int, ...]

    @classmethod
    def identity(cls, numel: int) -> Box:
        """The box of a whole tensor of `numel` elements stored contiguously."""
        return cls(0, 0, (numel,), (1,), (1,))

    @property
    def numel(self) -> int:
        """How many elements the box maps."""
        return prod(self.sizes)

    @property
    def span(self) -> int:
        """Length of the source range the box touches: its last source index - src_offset + 1, or 0 when empty."""
        return _reach(self.sizes, self.src_strides)

    @property
    def dst_span(self) -> int:
        """Length of the destination range the box touches: last index - dst_offset + 1, or 0 when empty."""
        return _reach(self.sizes, self.dst_strides)


@lru_cache(maxsize=1 << 16)  # a model with 18,432 experts asks for the same boxes at every sync
def normalise(box: Box) -> Box:
    """Bring a box into the form every operation works on: the same element pairs in the fewest dimensions.

    Dimensions of size 1 are dropped, the rest sorted by descending source stride, and neighbours that are contiguous in
    both source and destination merged. At least one dimension is kept (a single element has sizes (1,), an empty box
    sizes (0,)). The result inverts by successive division: r = i - src_offset; per dimension k = r // stride,
    r -= k * stride, with k < size; the element lies in the box when r ends at 0. Idempotent.

    Raises:
        ValueError: when lengths differ, an offset or size is negative, or two elements share a source or a destination
            place (a stride is not positive, or shorter than the span of the dimensions inside it).
    """
    if not len(box.sizes) == len(box.src_strides) == len(box.dst_strides):
        raise ValueError(
            f"expected as many sizes as source and destination strides, got {box}; give one of each per dim"
        )
    if box.src_offset < 0 or box.dst_offset < 0 or any(size < 0 for size in box.sizes):
        raise ValueError(f"expected offsets and sizes >= 0, got {box}; count elements from the start of the storage")
    if box.numel == 0:
        return Box(box.src_offset, box.dst_offset, (0,), (1,), (1,))
    dims = [dim for dim in zip(box.sizes, box.src_strides, box.dst_strides, strict=True) if dim[0] > 1]
    dims.sort(key=lambda dim: -dim[1])
    _check_nested(box, "source", [(size, stride) for size, stride, _ in dims])
    _check_nested(box, "destination", sorted(((size, stride) for size, _, stride in dims), key=lambda dim: -dim[1]))
    merged: list[tuple[int, int, int]] = []
    for size, src, dst in dims:
        if merged and merged[-1][1] == size * src and merged[-1][2] == size * dst:
            merged[-1] = (merged[-1][0] * size, src, dst)
        else:
            merged.append((size, src, dst))
    sizes, src_strides, dst_strides = zip(*(merged or [(1, 1, 1)]), strict=True)
    return Box(box.src_offset, box.dst_offset, sizes, src_strides, dst_strides)


@lru_cache(maxsize=1 << 16)
def _reach(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    if prod(sizes) == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def _check_nested(box: Box, side: str, dims: list[tuple[int, int]]) -> None:
    inner = 1
    for size, stride in reversed(dims):
        if stride < inner:
            raise ValueError(
                f"expected {side} strides that give every element its own place, got stride {stride} around a span of "
                f"{inner} in {box}; such a tensor cannot take changes in place: send it dense"
            )
        inner += (size - 1) * stride
