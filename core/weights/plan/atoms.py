"""Disjoint parts of a checkpoint tensor, from boxes that may repeat or overlap each other."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from slipstream.core.weights.layout import source_box
from slipstream.core.weights.plan.difference import difference
from slipstream.core.weights.plan.intersect import intersect_normal
from slipstream.triton_kernels import Box, normalise


class Atom(NamedTuple):
    """Elements that the same boxes cover."""

    region: Box
    """Normalised; checkpoint index to itself."""
    boxes: tuple[int, ...]
    """Indices of the boxes that cover it, ascending."""


def atoms(boxes: Sequence[Box]) -> list[Atom]:
    """Split what normalised boxes cover into disjoint atoms, in ascending order of their first element.

    Equal and disjoint boxes stay whole, which is what sharding gives; only boxes that overlap in part are cut.
    """
    groups: dict[Box, list[int]] = {}
    for index, box in enumerate(boxes):
        if box.numel:
            groups.setdefault(normalise(source_box(box)), []).append(index)
    parts = [Atom(region, tuple(indices)) for region, indices in sorted(groups.items())]
    if _are_disjoint(parts):
        return parts
    result: list[Atom] = []
    for part in parts:
        result = list(_refined(result, part))
    return sorted(result)


def meeting(region: Box, index: Index) -> Iterator[Atom]:
    """The atoms of an index whose range [first, last] touches that of `region`."""
    first = bisect_right(index.reach, region.src_offset)
    last = bisect_left(index.starts, region.src_offset + region.span)
    return (atom for atom in index.atoms[first:last] if atom.region.src_offset + atom.region.span > region.src_offset)


class Index(NamedTuple):
    """Atoms sorted for `meeting`."""

    atoms: list[Atom]
    starts: list[int]
    reach: list[int]
    """Highest end so far."""

    @classmethod
    def of(cls, parts: Iterable[Atom]) -> Index:
        """Sort atoms by their first element."""
        ordered = sorted(parts)
        ends = [atom.region.src_offset + atom.region.span for atom in ordered]
        return cls(ordered, [atom.region.src_offset for atom in ordered], list(accumulate(ends, max)))


def _are_disjoint(parts: list[Atom]) -> bool:
    """Whether no two of the parts, sorted by their first element, share an element."""
    for number, part in enumerate(parts):
        end = part.region.src_offset + part.region.span
        for other in parts[number + 1 :]:
            if other.region.src_offset >= end:
                break
            if intersect_normal(part.region, other.region):
                return False
    return True


def _refined(parts: list[Atom], new: Atom) -> Iterator[Atom]:
    """The disjoint `parts` and `new`, cut where they meet."""
    rest = [new.region]
    for part in parts:
        common = intersect_normal(part.region, new.region)
        if not common:
            yield part
            continue
        both = tuple(sorted({*part.boxes, *new.boxes}))
        for overlap in common:
            yield Atom(normalise(source_box(overlap.region)), both)
        for left in difference(part.region, new.region):
            yield Atom(normalise(left), part.boxes)
        rest = [left for box in rest for left in difference(box, part.region)]
    for left in rest:
        yield Atom(normalise(left), new.boxes)
