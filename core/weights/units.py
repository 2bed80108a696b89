"""Wire units: what travels between one sender and one engine worker, in the worker's own coordinates.

A *part* is a regular set of elements of one tensor that the worker holds, in row-major order of the checkpoint: a
whole tensor, its row or column shard, the slice of a fused matrix. A *unit* is what the codec sees as one array: one
large part, or several small ones in sequence (a thousand norms and biases would otherwise cost a header each). Both
ends address a change as (unit, index within the unit), so a worker is sent nothing that it does not hold, and can
rank every element of a unit by the old value it has (codec levels above 0).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from slipstream.core.weights.layout import Piece, TensorLayout, source_box
from slipstream.core.weights.tensors import DTYPES, TensorSpec
from slipstream.triton_kernels import Box, normalise

SMALL = 65_536
"""Parts below this many elements share a unit; units of several parts grow to about this size."""


class WireUnit(msgspec.Struct, frozen=True, array_like=True):
    """The worker's half of a unit."""

    dtype: str
    """Wire name of the dtype the engine stores it in."""
    numel: int
    tensors: tuple[int, ...]
    """Checkpoint tensors it has parts of, in order."""
    pieces: tuple[Piece, ...]
    """Where the elements go: source index is the index in the unit. Empty for a tensor of the engine's own loader."""

    @property
    def width(self) -> int:
        """Bytes an element."""
        return DTYPES[self.dtype].itemsize

    @property
    def by_loader(self) -> bool:
        """Whether it is one whole tensor that travels in full, for the engine's own loader."""
        return not self.pieces


class Source(NamedTuple):
    """The sender's half of a part."""

    unit: int
    tensor: int
    box: Box
    """From the index in the sender's flat tensor (source) to the index in the unit (destination)."""
    copies: int
    """Places in the worker that hold this part; its fingerprint counts once for each."""


@dataclass(frozen=True)
class Link:
    """The units between one sender and all workers of one layout."""

    units: tuple[WireUnit, ...]
    sources: tuple[Source, ...]
    """In ascending order of (tensor, unit)."""

    def of_tensor(self) -> dict[int, list[Source]]:
        """Sources by tensor."""
        result: dict[int, list[Source]] = {}
        for source in self.sources:
            result.setdefault(source.tensor, []).append(source)
        return result


def link_units(specs: Sequence[TensorSpec], layouts: Sequence[TensorLayout]) -> Link:
    """Units for a sender that has every tensor whole and contiguous.

    Args:
        specs: the checkpoint table.
        layouts: how the worker holds each tensor of it.
    """
    builder = _Builder()
    for tensor, (spec, layout) in enumerate(zip(specs, layouts, strict=True)):
        if layout.kind == "loader":
            builder.add(tensor, layout.dtype, Box.identity(spec.numel), ())
        for box, places in _parts(layout):
            builder.add(tensor, layout.dtype, box, places)
    return builder.link()


def _parts(layout: TensorLayout) -> Iterator[tuple[Box, list[tuple[int, Box]]]]:
    """The distinct sets of elements that a worker holds of a tensor; one that it holds twice (a tied copy) comes once.

    Yields:
        The box from the checkpoint tensor to the row-major index in the part, and for each place that holds the part
        its storage and the box from the index in the part to the storage.
    """
    places: dict[Box, list[tuple[int, Box]]] = {}
    for piece in layout.pieces:
        box = normalise(piece.as_box())
        if box.numel:
            # Ascending checkpoint index and row-major order are the same, however many dimensions the box keeps.
            held = box._replace(src_offset=0, src_strides=row_major(box.sizes))
            places.setdefault(normalise(source_box(box)), []).append((piece.storage, held))
    for box, found in places.items():
        yield box._replace(dst_offset=0, dst_strides=row_major(box.sizes)), found


class _Growing:
    """A unit under construction."""

    def __init__(self, dtype: str) -> None:
        self.dtype, self.numel = dtype, 0
        self.tensors: dict[int, None] = {}
        self.pieces: list[Piece] = []

    def finished(self) -> WireUnit:
        return WireUnit(self.dtype, self.numel, tuple(self.tensors), tuple(self.pieces))


class _Builder:
    """Puts parts into units, in the order of the checkpoint."""

    def __init__(self) -> None:
        self._units: list[_Growing] = []
        self._sources: list[Source] = []
        self._open: dict[str, int] = {}  # dtype -> the unit that still takes small parts

    def add(self, tensor: int, dtype: str, box: Box, places: Sequence[tuple[int, Box]]) -> None:
        """Append a part; without `places` it is a tensor for the engine's own loader, and a unit of its own."""
        small = bool(places) and box.numel < SMALL
        index = self._open.get(dtype) if small else None
        if index is None:
            index = len(self._units)
            self._units.append(_Growing(dtype))
        unit = self._units[index]
        self._sources.append(Source(index, tensor, box._replace(dst_offset=unit.numel), len(places)))
        unit.tensors[tensor] = None
        unit.pieces += [Piece.of(s, normalise(held._replace(src_offset=unit.numel))) for s, held in places]
        unit.numel += box.numel
        if small:
            self._open[dtype] = index
            if unit.numel >= SMALL:
                del self._open[dtype]

    def link(self) -> Link:
        """Everything added so far."""
        return Link(tuple(unit.finished() for unit in self._units), tuple(self._sources))


def row_major(sizes: Iterable[int]) -> tuple[int, ...]:
    """Strides of a contiguous array of `sizes`."""
    strides = [1]
    for size in reversed(tuple(sizes)):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides[:-1]))
