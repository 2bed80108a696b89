"""Exact intersection of two affine boxes of one checkpoint tensor.

Two sides cut a tensor differently: rows against columns, flat ranges that end inside a row, interleaved heads, views
of another rank. WeightBridge (arXiv 2609.25442) aligns such boxes by splitting dimensions whose widths divide each
other and refuses the rest; here only strides and offsets count, so nothing has to divide and nothing is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from slipstream.core.weights.plan.coalesce import coalesce
from slipstream.core.weights.plan.lattice import Dim, Dims, Lattice, Point, as_overlap, of_receiver, of_sender, span
from slipstream.core.weights.plan.overlap import Overlap
from slipstream.triton_kernels import Box, normalise
from slipstream.triton_kernels.box import MAX_RANK


def intersect(a: Box, b: Box) -> list[Overlap]:
    """The elements that both boxes cover, as disjoint regular sets in ascending order of their first element.

    Args:
        a: checkpoint index to index in the sender's shard.
        b: checkpoint index of the same tensor to index in the receiver's storage.

    Returns:
        Few overlaps (usually one), of at most `MAX_RANK` dimensions each. Time follows their number, not the elements.

    Raises:
        ValueError: a box does not invert (see `normalise`).
    """
    return intersect_normal(normalise(a), normalise(b))


def intersect_normal(a: Box, b: Box) -> list[Overlap]:
    """`intersect` for boxes that `normalise` returned."""
    if a.numel == 0 or b.numel == 0:
        return []
    if a.src_offset >= b.src_offset + b.span or b.src_offset >= a.src_offset + a.span:
        return []
    found: list[Lattice] = []
    _walk(of_sender(a), of_receiver(b), (), found)
    return [as_overlap(part) for lattice in coalesce(found) for part in _within_rank(lattice)]


def _walk(a: Lattice, b: Lattice, outer: Dims, found: list[Lattice]) -> None:
    """Collect the common elements of two sets, each repeated along `outer`.

    With a the set of the larger outer stride: its rows i start at a + i*S and reach over w, the rows j of b at b + j*T
    over v. Row i meets rows [low, high] of b; p rows further (p*S = q*T) it meets rows [low + q, high + q] in the
    same way. So one look at a row serves all rows of its class mod p whose range b does not clip, as one dimension of
    stride p*S; the few clipped ones (head and tail of a flat range) are looked at one by one.
    """
    if not a[1] or (b[1] and b[1][0][1] > a[1][0][1]):
        a, b = b, a
    (a_point, a_dims), (b_point, b_dims) = a, b
    if not a_dims:
        if a_point[0] == b_point[0]:
            found.append((_sum(a_point, b_point), outer))
        return
    a_row, a_inner = a_dims[0], a_dims[1:]
    b_row, b_inner = (b_dims[0], b_dims[1:]) if b_dims else ((1, a_row[1], 0, 0), ())
    (n, big, *_), (m, small, *_) = a_row, b_row
    w, v = span(a_inner), span(b_inner)
    p, q = small // gcd(big, small), big // gcd(big, small)
    distance = a_point[0] - b_point[0]

    def descend(i: int, j: int, rows: int, repeats: int) -> None:
        """Row i of a against `rows` rows of b from j on, and so on `repeats` times, p and q rows further each time."""
        step = (repeats, p * big, p * a_row[2] + q * b_row[2], p * a_row[3] + q * b_row[3])
        b_part = ((rows, *b_row[1:]), *b_inner) if rows > 1 else b_inner
        dims = (*outer, step) if repeats > 1 else outer
        _walk((_moved(a_point, a_row, i), a_inner), (_moved(b_point, b_row, j), b_part), dims, found)

    for i in _rows_that_meet(distance, n, big, w, small, v):
        start, classed = distance + i * big, -(-(n - i) // p)
        low, high = -((v - 1 - start) // small), (start + w - 1) // small
        if high - low < 2:  # one row, or two that straddle: each has its own range of repeats
            for j in range(low, high + 1):
                first, last = max(0, -(j // q)), min(classed, (m - 1 - j) // q + 1)
                if first < last:
                    descend(i + p * first, j + q * first, 1, last - first)
            continue
        touched = range(max(0, -(high // q)), min(classed, (m - 1 - low) // q + 1))
        first, last = max(0, -(low // q)), min(classed, (m - 1 - high) // q + 1)
        if first < last:
            descend(i + p * first, low + q * first, high - low + 1, last - first)
        for k in touched:
            if not first <= k < last:
                begin, end = max(0, low + q * k), min(m - 1, high + q * k)
                descend(i + p * k, begin, end - begin + 1, 1)


def _rows_that_meet(distance: int, n: int, big: int, w: int, small: int, v: int) -> Iterable[int]:
    """One row of each class mod p = small / gcd that comes within reach of an endless b, ascending.

    Row i starts at r = (distance + i * big) mod small from the row of b before it; it meets b for r in (-w, v). These
    r, all congruent to the distance mod gcd, are enumerated and solved for i when they are fewer than the classes.
    """
    divisor = gcd(big, small)
    p = small // divisor
    lowest = 1 - w + (distance + w - 1) % divisor
    if w + v - 1 >= small or len(range(lowest, v, divisor)) >= min(n, p):
        return range(min(n, p))
    inverse = pow(big // divisor, -1, p)
    rows = (((r - distance) // divisor * inverse) % p for r in range(lowest, v, divisor))
    return sorted(i for i in set(rows) if i < n)


def _within_rank(lattice: Lattice) -> Iterable[Lattice]:
    """The set cut along its shortest dimensions until the kernels take the parts."""
    point, dims = lattice
    if len(dims) <= MAX_RANK:
        yield lattice
        return
    at = min(range(len(dims)), key=lambda index: dims[index][0])
    for k in range(dims[at][0]):
        yield from _within_rank((_moved(point, dims[at], k), dims[:at] + dims[at + 1 :]))


def _moved(point: Point, dim: Dim, count: int) -> Point:
    return point[0] + count * dim[1], point[1] + count * dim[2], point[2] + count * dim[3]


def _sum(a: Point, b: Point) -> Point:
    """The coordinates of a common element: `a` and `b` agree on the checkpoint and know one side each."""
    return a[0], a[1] + b[1], a[2] + b[2]
