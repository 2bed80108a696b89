"""Levels 1 and 2: the class codec with the class map in front, one map a dtype, fitted to what changed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.weights.tensors import DTYPES
from slipstream.core.weights.wire.arrays import Bits, Places, join, like
from slipstream.core.weights.wire.class_map import ClassMap, Prediction
from slipstream.core.weights.wire.histogram import SAMPLE, Histogram, stride_of
from slipstream.core.weights.wire.unit import OldValues, Uploaded, bits_dtype
from slipstream.triton_kernels import BITS_OF_WIDTH, PackedChanges, PackedUnits
from slipstream.triton_kernels.class_codec import BF16, FP8, FP16, FP32, MAX_CLASSES, CorruptBlockError, Exponent
from slipstream.triton_kernels.class_codec import decode as decode_part
from slipstream.triton_kernels.class_codec import encode as encode_part
from slipstream.triton_kernels.class_codec import unpack as unpack_part
from slipstream.triton_kernels.class_codec import unpack_all as unpack_parts

EXPONENTS: dict[str, Exponent] = {
    "bfloat16": BF16,
    "float16": FP16,
    "float32": FP32,
    "float8_e4m3fn": FP8,
    "float8_e5m2": FP8,
}
"""Where the exponent of a dtype is; other dtypes have none and travel at level 0."""
FAR_OFF = 1.15
"""Coded over predicted size from which the rest of the same sync is fitted anew."""

COPIED = 8 << 20
"""Old elements of units that do not lie in one piece: how many are copied at a time, to be classed."""


class ClassEncoder:
    """Encodes the units of one link, sync after sync.

    A map is fitted on all units of one sync, in the first one and again when the coded size has outgrown what the map
    predicts; a fitted map stays good for many syncs. During such a sync every unit has a map of its own, and when the
    size is far off, such a sync begins at the next unit.
    """

    def __init__(self, most: int = MAX_CLASSES) -> None:
        """Start without maps; `most` classes a map: 1 for level 1, 8 for level 2."""
        self._most = most
        self._kept: dict[str, _Kept] = {}

    def encode(self, old: OldValues, positions: Places, values: Bits) -> Any:
        """Encode the changes of one unit: its class map and its blocks, where the changes are; empty for no change."""
        exponent, before = EXPONENTS[old.dtype], old.all()
        kept = self._kept.setdefault(old.dtype, _Kept())
        class_map = kept.class_map
        if class_map is None or kept.measuring:
            measured = Histogram.measure(before, positions, values, exponent, stride_of(len(positions)))
            kept.histogram = measured if kept.histogram is None else kept.histogram + measured
            class_map = ClassMap.fit(measured, self._most)
        blocks = encode_part(before, positions, values, class_map, exponent)
        kept.count(len(blocks), old.numel, len(positions))
        return join((like(blocks, class_map.to_bytes()), blocks))

    def finish(self) -> None:
        """The last unit of a sync was encoded: decide whether the maps are still good."""
        for kept in self._kept.values():
            kept.finish(self._most)


class _Kept:
    """The map of one dtype."""

    def __init__(self) -> None:
        self.class_map: ClassMap | None = None
        self.histogram: Histogram | None = None
        self.measuring = False
        self._predicted: Prediction | None = None
        self._coded = self._elements = self._changes = 0

    def count(self, coded: int, elements: int, changes: int) -> None:
        self._coded += coded
        self._elements += elements
        self._changes += changes
        if self._predicted is not None and self._changes >= SAMPLE:
            # Far off, as in the second sync of a run from a checkpoint: the units that follow need not wait for a fit.
            expected = self._predicted.size(self._elements, self._changes)
            self.measuring |= self._coded > FAR_OFF * expected

    def finish(self, most: int) -> None:
        if self.histogram is not None:
            self.class_map = ClassMap.fit(self.histogram, most)
            self._predicted = self.class_map.predict(self.histogram)
            self.histogram, self.measuring = None, False
        elif self._predicted is not None and self._changes:
            self.measuring = self._predicted.outgrown(self._coded, self._elements, self._changes)
        self._coded = self._elements = self._changes = 0


def decode(data: NDArray[np.uint8] | Uploaded, old: OldValues) -> tuple[Places, Bits]:
    """Inverse of `ClassEncoder.encode`; with one class only the changed elements of `old` are read.

    Raises:
        CorruptBlockError: `data` is nothing that the encoder writes for such a unit.
    """
    host, body = data if isinstance(data, Uploaded) else (data, data)
    class_map, size, width = _map_of(host, old)
    values: Any = old.at if class_map.number == 1 else old.all()
    dtype: Any = BITS_OF_WIDTH[width] if isinstance(data, Uploaded) else bits_dtype(width)
    found: tuple[Any, Any] = decode_part(body[size:], old.numel, values, class_map, EXPONENTS[old.dtype], dtype)
    return found


def unpack(data: NDArray[np.uint8], old: OldValues) -> PackedChanges:
    """`decode` on the host, into packed changes; with one class nothing of `old` is read."""
    class_map, size, width = _map_of(data, old)
    before = None if class_map.number == 1 else old.all()
    return unpack_part(data[size:], old.numel, before, class_map, EXPONENTS[old.dtype], bits_dtype(width))


def unpack_all(data: NDArray[np.uint8], sections: NDArray[np.int64], olds: Sequence[OldValues]) -> PackedUnits:
    """`unpack` of several units of one width: int64[k, 2], where the payload of each begins and its bytes.

    As many of them, from the first on, as copy at most `COPIED` old elements; one at least.

    Raises:
        ValueError: as `unpack`, for any of them.
    """
    width = DTYPES[olds[0].dtype].itemsize
    maps: dict[tuple[ClassMap, Exponent], int] = {}
    table, values, copied = np.empty((len(olds), 4), np.int64), list[Any](), 0
    for i, ((at, size), old) in enumerate(zip(sections.tolist(), olds, strict=True)):
        class_map, head, _ = _map_of(data[at : at + size], old)
        several = class_map.number > 1
        copied += old.numel if several and old.copies else 0
        if copied > COPIED and i:
            table = table[:i]
            break
        values.append(old.all() if several else None)
        which = maps.setdefault((class_map, EXPONENTS[old.dtype]), len(maps))
        table[i] = at + head, size - head, old.numel, which
    return unpack_parts(data, table, list(maps), values, bits_dtype(width))


def _map_of(data: NDArray[np.uint8], old: OldValues) -> tuple[ClassMap, int, int]:
    """The class map in front, its bytes, and the bytes of an element."""
    if old.dtype not in EXPONENTS:
        raise CorruptBlockError(f"the class codec does not code {old.dtype}")
    width, size = DTYPES[old.dtype].itemsize, 2 * int(data[0]) if data.size else 0
    return _parsed(data[:size].tobytes(), width), size, width


_parsed = lru_cache(ClassMap.from_bytes)  # a sync has one map, its sections may be thousands
