"""Regular sets of elements as the set algebra handles them: a starting point and dimensions, each a vector.

A point is (checkpoint, sender, receiver) index; a dimension is (size, checkpoint, sender, receiver stride). A set that
only one side knows has zeros for the other, so the coordinates of a common element are the sum of both sides'.
"""

from __future__ import annotations

from slipstream.core.weights.plan.overlap import Overlap
from slipstream.triton_kernels import Box

Point = tuple[int, int, int]
Dim = tuple[int, int, int, int]
Dims = tuple[Dim, ...]
Lattice = tuple[Point, Dims]
"""Dimensions in descending checkpoint stride, each stride at least the span of the dimensions inside it."""


def of_sender(box: Box) -> Lattice:
    """A normalised box whose destination is the sender's shard."""
    dims = zip(box.sizes, box.src_strides, box.dst_strides, strict=True)
    return (box.src_offset, box.dst_offset, 0), tuple((n, c, s, 0) for n, c, s in dims if n > 1)


def of_receiver(box: Box) -> Lattice:
    """A normalised box whose destination is the receiver's storage."""
    dims = zip(box.sizes, box.src_strides, box.dst_strides, strict=True)
    return (box.src_offset, 0, box.dst_offset), tuple((n, c, 0, r) for n, c, r in dims if n > 1)


def span(dims: Dims) -> int:
    """Length of the checkpoint range the dimensions reach over."""
    reach = 1
    for size, stride, _, _ in dims:
        reach += (size - 1) * stride
    return reach


def simplified(dims: Dims) -> Dims:
    """The same elements in fewer dimensions: ones dropped, neighbours contiguous in all coordinates merged."""
    merged: list[Dim] = []
    for dim in dims:
        size, c, s, r = dim
        if size == 1:
            continue
        if merged and merged[-1][1:] == (size * c, size * s, size * r):
            merged[-1] = (merged[-1][0] * size, c, s, r)
        else:
            merged.append(dim)
    return tuple(merged)


def nested(dims: Dims) -> bool:
    """Whether every coordinate gives each element its own place the way `normalise` asks for; 0 strides don't count."""
    for axis in (1, 2, 3):
        inner = 1
        for stride, size in sorted((dim[axis], dim[0]) for dim in dims):
            if stride and stride < inner:
                return False
            inner += (size - 1) * stride
    return True


def as_overlap(lattice: Lattice) -> Overlap:
    """The set with both sides' coordinates filled in."""
    (c, s, r), dims = lattice
    if not dims:
        return Overlap(c, s, r, (1,), (1,), (1,), (1,))
    sizes, checkpoint, sender, receiver = zip(*dims, strict=True)
    return Overlap(c, s, r, sizes, checkpoint, sender, receiver)
