"""Changes of a unit on the host as the decoders leave them: 4 to 6 bytes each, where positions and values take 10."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

RUN = 65_536
"""Elements a run covers at most, so that a place in it fits 16 bits."""


class PackedChanges(NamedTuple):
    """Changes in runs: those of run r are [starts[r], starts[r + 1]), at bases[r] + offsets, in ascending order."""

    bases: NDArray[np.int64]
    """int64[runs], strictly ascending element indices, at least the length of a run apart."""
    starts: NDArray[np.int64]
    """int64[runs + 1], first change of each run, and their number; a run may have none."""
    offsets: NDArray[np.uint16]
    """uint16[n], strictly ascending in a run."""
    payload: NDArray[Any]
    """[n]: new elements (unsigned, or in a wider signed type); in moved runs how far each element goes from the one
    that is there, in the order of the floats (`class_codec.reference.monotone`), never 0."""
    moved: NDArray[np.bool_]
    """bool[runs]."""

    def positions(self, first: int = 0, stop: int | None = None) -> NDArray[np.int64]:
        """int64[stop - first]: element indices of the changes from `first` on, all by default."""
        from .packed_cpu import expand

        stop = self.offsets.size if stop is None else stop
        out = np.empty(stop - first, np.int64)
        expand(self.bases, self.starts, self.offsets, first, stop, out)
        return out

    def within(self, start: int, stop: int) -> tuple[int, int]:
        """The changes of elements [start, stop) of the unit, as a range of them."""
        if self.offsets.size == 0 or (start <= self.bases[0] and self.bases[-1] + RUN <= stop):
            return 0, self.offsets.size  # as nearly always, and twice as fast
        from .packed_cpu import bisect

        return bisect(self.bases, self.starts, self.offsets, start, stop)

    def values(self, old: NDArray[Any], taken: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """unsigned[m]: the new elements, given those that are there, of the same type.

        Args:
            old: unsigned[m].
            taken: int64[m], ascending, which of the changes they are of; all by default.

        Raises:
            ValueError: one would move out of its type.
        """
        from .packed_cpu import resolve

        out, starts, payload = np.empty_like(old), self.starts, self.payload
        if taken is not None:
            starts, payload = np.searchsorted(taken, starts), payload[taken]
        if resolve(starts, payload, self.moved, old, out):
            raise ValueError(MOVED_OUT)
        return out


class PackedUnits(NamedTuple):
    """Changes of several units, one unit after another."""

    runs: NDArray[np.int64]
    """int64[units + 1]: unit i has the runs [runs[i], runs[i + 1])."""
    changes: PackedChanges
    """Bases count from the start of each unit, so they ascend within a unit only."""

    @classmethod
    def one(cls, changes: PackedChanges) -> PackedUnits:
        """Of one unit."""
        return cls(np.array([0, changes.bases.size]), changes)

    def unit(self, i: int) -> PackedChanges:
        """Those of one unit, without a copy of any of them."""
        begin, end = int(self.runs[i]), int(self.runs[i + 1])
        bases, starts, offsets, payload, moved = self.changes
        first, stop = int(starts[begin]), int(starts[end])
        return PackedChanges(
            bases[begin:end],
            starts[begin : end + 1] - first,
            offsets[first:stop],
            payload[first:stop],
            moved[begin:end],
        )


MOVED_OUT = "a value moves out of its type: the old value is not the encoder's, or the block is damaged"
