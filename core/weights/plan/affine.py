"""Boxes from a list of index pairs, where a framework can say where each element went but not by which rule."""

from __future__ import annotations

import numpy as np

from slipstream.core.weights.wire import I64
from slipstream.triton_kernels import Box, normalise
from slipstream.triton_kernels.box import MAX_RANK

_SAMPLE = 4096
"""Steps that are looked at to guess the stride of a level."""


def affine_boxes(sources: I64, destinations: I64) -> list[Box]:
    """The fewest boxes that a greedy folding finds: rows of equal steps, rows of such rows, and so on.

    Args:
        sources: int64[n], ascending: flat indices in the checkpoint tensor.
        destinations: int64[n]: flat indices in the storage.

    Raises:
        ValueError: elements are laid out in a way that boxes cannot invert (backwards, or one on another).
    """
    return [normalise(box) for box in _fold(sources, destinations, (), (), ())] if sources.size else []


def _fold(
    sources: I64,
    destinations: I64,
    sizes: tuple[int, ...],
    source_strides: tuple[int, ...],
    destination_strides: tuple[int, ...],
) -> list[Box]:
    """Boxes of equal inner shape that start at the given places."""
    if sources.size == 1 or len(sizes) == MAX_RANK:
        inner = (sizes or (1,), source_strides or (1,), destination_strides or (1,))
        return [Box(int(s), int(d), *inner) for s, d in zip(sources, destinations, strict=True)]
    steps = np.stack([np.diff(sources), np.diff(destinations)], axis=1)
    found, counts = np.unique(steps[:_SAMPLE], axis=0, return_counts=True)
    step = found[counts.argmax()]
    starts = np.concatenate([[0], np.flatnonzero((steps != step).any(axis=1)) + 1])
    lengths = np.diff(np.append(starts, sources.size))
    boxes = []
    for first, last in _equal_runs(lengths):
        length, at = int(lengths[first]), starts[first:last]
        deeper = (sizes, source_strides, destination_strides)
        if length > 1:
            deeper = ((length, *sizes), (int(step[0]), *source_strides), (int(step[1]), *destination_strides))
        if length == 1 and at.size == sources.size:
            raise AssertionError("a step that was found occurs")  # each level is shorter than the last
        boxes += _fold(sources[at], destinations[at], *deeper)
    return boxes


def _equal_runs(values: I64) -> list[tuple[int, int]]:
    edges = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1, [values.size]])
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
