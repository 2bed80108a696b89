"""What a box covers and another does not."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.core.weights.plan.intersect import intersect_normal
from slipstream.core.weights.plan.lattice import Lattice, of_sender, span
from slipstream.core.weights.plan.overlap import Overlap
from slipstream.triton_kernels import Box


def difference(a: Box, b: Box) -> list[Box]:
    """The elements of `a` outside `b`, as disjoint normalised boxes with the destination of `a`.

    The gaps of a regular set are regular sets themselves, at most two and one a dimension; so the difference is the
    intersection with each of them.

    Args:
        a, b: normalised boxes of one checkpoint tensor.
    """
    if b.numel == 0:
        return [a] if a.numel else []
    return [_box_of(overlap) for gap in _gaps(b, a.src_offset + a.span) for overlap in intersect_normal(a, gap)]


def _box_of(overlap: Overlap) -> Box:
    """The sender's side of an overlap: checkpoint index to index in the sender's shard."""
    return Box(
        overlap.checkpoint_offset,
        overlap.sender_offset,
        overlap.sizes,
        overlap.checkpoint_strides,
        overlap.sender_strides,
    )


def _gaps(box: Box, stop: int) -> Iterator[Box]:
    """The flat indices below `stop` that a non-empty normalised box leaves out, each mapped to itself."""
    (start, _, _), dims = of_sender(box)
    yield from _range(0, start)
    yield from _range(start + span(dims), stop)
    outer: Lattice = ((start, 0, 0), ())
    for j, (size, stride, _, _) in enumerate(dims):
        inner = span(dims[j + 1 :])
        if stride > inner:
            repeats = (*outer[1], (size - 1, stride, 0, 0), (stride - inner, 1, 0, 0))
            kept = [dim for dim in repeats if dim[0] > 1] or [(1, 1, 0, 0)]
            strides = tuple(dim[1] for dim in kept)
            yield Box(start + inner, start + inner, tuple(dim[0] for dim in kept), strides, strides)
        outer = (outer[0], (*outer[1], dims[j]))


def _range(start: int, stop: int) -> Iterator[Box]:
    if start < stop:
        yield Box(start, start, (stop - start,), (1,), (1,))
