"""Changes of many units into the storages of an engine, in one compiled call: a model has hundreds of tensors, and
Python took longer over each of them than the scatter over its few changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..bits import BITS_DTYPES
from ..box import Box
from ..fingerprint import check_storage
from ..packed import PackedUnits
from ..threads import run, split, workers

LEAST = 1 << 15  # changes a thread takes at least


class Places(NamedTuple):
    """Where the elements of units lie on the host, as far as boxes that only shift say it."""

    storages: Sequence[Tensor]
    """Those that the boxes lie in; `table` has their addresses."""
    addresses: tuple[int, ...]
    """Where they were when the table was made."""
    width: NDArray[np.int64]
    """int64[units]: bytes an element; 0 where a box does more than shift: `scatter_packed` takes those."""
    first: NDArray[np.int64]
    """int64[units + 1]: unit u has the rows [first[u], first[u + 1])."""
    table: NDArray[np.int64]
    """int64[boxes, 5]: address of the storage, its elements, then of the box: first element of the unit, one behind the
    last, and what to add to get the index in the storage."""

    @classmethod
    def of(cls, storages: Sequence[Tensor], units: Sequence[Sequence[tuple[int, Box]]]) -> Places:
        """Those of units whose boxes are (index of a storage, box); a storage is 1-D contiguous bits (`as_bits`).

        Raises:
            ValueError: a box leaves its storage, or is not invertible.
        """
        width, first, rows = [], [0], list[tuple[int, int, int, int, int]]()
        for boxes in units:
            found = [_row(storages[storage], box) for storage, box in boxes]
            plain = [row for row in found if row is not None]
            widths = {storages[storage].element_size() for storage, _ in boxes}
            width.append(widths.pop() if len(plain) == len(boxes) and len(widths) == 1 else 0)
            rows += plain
            first.append(len(rows))
        table = np.array(rows, np.int64).reshape(-1, 5)
        return cls(storages, _addresses(storages), np.array(width, np.int64), np.array(first, np.int64), table)

    @property
    def is_current(self) -> bool:
        """Whether the storages are where they were."""
        return self.addresses == _addresses(self.storages)


def _addresses(storages: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(storage.data_ptr() for storage in storages)


def _row(storage: Tensor, box: Box) -> tuple[int, int, int, int, int] | None:
    if storage.device.type != "cpu" or storage.dtype not in BITS_DTYPES:
        return None
    box = check_storage(storage, box)
    if box.src_strides != (1,) or box.dst_strides != (1,):
        return None
    end = box.src_offset + box.span
    return storage.data_ptr(), storage.numel(), box.src_offset, end, box.dst_offset - box.src_offset


class UnitsApplied:
    """Changes of units on their way into memory, and back: the log of what they overwrite is kept here.

    A part is written by `write`; whatever was written, by a call that failed as well, `undo` takes back.
    """

    def __init__(self, places: Places, units: NDArray[np.int64], changes: PackedUnits) -> None:
        """Plan the writes; nothing is written yet.

        Args:
            places: of all units; they must be current.
            units: int64[k], which of them `changes` are of, each once, with a width in `places`.
            changes: of elements of one width, in order, as a decoder that checks made them.
        """
        from .units_cpu import list_parts

        runs, packed = changes
        width = int(places.width[units[0]]) if units.size else 1
        most = LEAST if workers() > 1 else 1 << 62
        arrays = runs, packed.bases, packed.starts, packed.offsets
        self._places, self._changes = places, changes
        self.parts = list_parts(places.first, places.table, units, *arrays, most)
        """int64[parts, 5]: unit (index in `units`), row in `places`, first change and one behind the last, and where
        their old values go."""
        size = int(self.parts[-1, 4] + self.parts[-1, 3] - self.parts[-1, 2]) if len(self.parts) else 0
        self._old = np.empty(size, f"u{width}")
        self._done = np.zeros(len(self.parts), np.bool_)
        self._deltas = np.zeros(units.size, np.uint64)

    @property
    def deltas(self) -> NDArray[np.uint64]:
        """uint64[k], by how much the fingerprint of each unit moved, modulo 2**64."""
        return self._deltas

    def write(self, begin: int = 0, end: int | None = None) -> int:
        """Write some of the parts, all by default; return how many elements would have moved out of their type (then
        everything must be taken back)."""
        from .units_cpu import write_parts

        end = len(self.parts) if end is None else end
        runs, packed = self._changes

        def piece(start: int, stop: int) -> tuple[int, Any]:
            deltas = np.zeros_like(self._deltas)
            logs = self._old, self._done, deltas
            first, last = begin + start, begin + stop
            return write_parts(self.parts, self._places.table, runs, *packed, *logs, first, last), deltas

        bad = 0
        for found, deltas in run(piece, split(end - begin, 1)):
            bad += found
            self._deltas += deltas
        return bad

    def undo(self) -> None:
        """Put back what was overwritten, last part first."""
        from .units_cpu import undo_parts

        runs, packed = self._changes
        arrays = packed.bases, packed.starts, packed.offsets
        undo_parts(self.parts, self._places.table, runs, *arrays, self._old, self._done)
        self._done[:] = False
