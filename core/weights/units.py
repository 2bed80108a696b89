"""Wire units: what travels between one sender and one engine worker, in the worker's own coordinates.

A *part* is a regular set of elements of one tensor that the sender has and the worker holds, in ascending order of the
checkpoint: a whole tensor, its row or column shard, the slice of a fused matrix. A *unit* is what the codec sees as
one array: one large part, or several small ones in sequence (a thousand norms and biases would otherwise cost a header
each). Both ends address a change as (unit, index within the unit), so a worker is sent nothing that it does not hold,
and can rank every element of a unit by the old value it has (codec levels above 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from slipstream.core.weights.layout import Piece, TensorLayout
from slipstream.core.weights.plan import Senders, Transfer, plan
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
    """Where the elements go: source index is the index in the unit."""
    by_loader: bool = False
    """It belongs to a tensor that the engine's own loader transforms: it travels in full, and `Piece.storage` is the
    tensor, which the worker puts together before it calls the loader."""

    @property
    def width(self) -> int:
        """Bytes an element."""
        return DTYPES[self.dtype].itemsize


class Source(NamedTuple):
    """The sender's half of a part."""

    unit: int
    tensor: int
    box: Box
    """From the index in the sender's flat local tensor (source) to the index in the unit (destination)."""
    copies: int
    """Places in the worker that hold this part; its fingerprint counts once for each."""

    @property
    def ascends(self) -> bool:
        """Whether the unit has the elements in the order of the sender's memory."""
        return list(self.box.dst_strides) == sorted(self.box.dst_strides, reverse=True)

    @property
    def from_unit(self) -> Box:
        """From the index in the unit to the index in the sender's flat local tensor, dimensions in unit order."""
        box = self.box
        return normalise(Box(box.dst_offset, box.src_offset, box.sizes, box.dst_strides, box.src_strides))


@dataclass(frozen=True)
class Link:
    """The units between one sender and all workers of one layout."""

    units: tuple[WireUnit, ...]
    sources: tuple[Source, ...]
    """In ascending order of (tensor, unit)."""


def link_units(
    specs: Sequence[TensorSpec], layouts: Sequence[TensorLayout], senders: Senders, rank: int, small: int = SMALL
) -> Link:
    """Units between one trainer rank and the workers of one layout.

    Args:
        specs: the checkpoint table.
        layouts: how the worker holds each tensor of it.
        senders: how the trainer ranks hold them.
        rank: the trainer rank that sends.
        small: parts below this many elements share units; 0 gives each part its own.

    Raises:
        SyncError: the worker holds elements that no trainer rank has.
    """
    needs = {spec.name: _pieces(index, spec, layouts[index]) for index, spec in enumerate(specs)}
    widths = {layout.name: DTYPES[layout.dtype].itemsize for layout in layouts}
    index_of = {spec.name: index for index, spec in enumerate(specs)}
    mine = plan(senders, {"": needs}, widths).of_sender(rank)
    builder = _Builder(small)
    for transfer in sorted(mine, key=lambda transfer: index_of[transfer.tensor]):
        tensor = index_of[transfer.tensor]
        builder.add(tensor, layouts[tensor], transfer)
    return builder.link()


def _pieces(tensor: int, spec: TensorSpec, layout: TensorLayout) -> Sequence[Piece]:
    return (Piece.of(tensor, Box.identity(spec.numel)),) if layout.kind == "loader" else layout.pieces


class _Growing:
    """A unit under construction."""

    def __init__(self, layout: TensorLayout) -> None:
        self.dtype, self.by_loader = layout.dtype, layout.kind == "loader"
        self.numel = 0
        self.tensors: dict[int, None] = {}
        self.pieces: list[Piece] = []

    def finished(self) -> WireUnit:
        return WireUnit(self.dtype, self.numel, tuple(self.tensors), tuple(self.pieces), self.by_loader)


class _Builder:
    """Puts parts into units, in the order of the checkpoint."""

    def __init__(self, small: int) -> None:
        self._small = small
        self._units: list[_Growing] = []
        self._sources: list[Source] = []
        self._open: dict[str, int] = {}  # dtype -> the unit that still takes small parts

    def add(self, tensor: int, layout: TensorLayout, part: Transfer) -> None:
        """Append a part; one for the engine's own loader is a unit of its own."""
        small = layout.kind == "mapped" and part.numel < self._small
        index = self._open.get(layout.dtype) if small else None
        if index is None:
            index = len(self._units)
            self._units.append(_Growing(layout))
        unit, base = self._units[index], self._units[index].numel
        places = part.destinations
        self._sources.append(Source(index, tensor, _moved(part.send, to=base), 0 if unit.by_loader else len(places)))
        unit.pieces += [Piece.of(place.storage, _moved(place.box, at=base)) for place in places]
        unit.tensors[tensor] = None
        unit.numel += part.numel
        if small:
            self._open[layout.dtype] = index
            if unit.numel >= self._small:
                del self._open[layout.dtype]

    def link(self) -> Link:
        """Everything added so far."""
        return Link(tuple(unit.finished() for unit in self._units), tuple(self._sources))


def _moved(box: Box, at: int = 0, to: int = 0) -> Box:
    return normalise(box._replace(src_offset=box.src_offset + at, dst_offset=box.dst_offset + to))
