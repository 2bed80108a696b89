"""Changes as deltas, coded in classes of the old value's exponent: levels 1 (one class) and 2 of the wire format.

An update moves a weight by about the learning rate, so how often a stored element changes, and by how many units of
the last place, follows from the exponent of its old value. Ranking elements inside classes of that exponent and coding
each class by itself needs 5.5 to 7.7 bits a change at RL densities, where positions and values alone take 26.

The elements are those of a part: any run of elements in an order that both sides know. `old` must be bit for bit what
the encoder had, or the result is wrong; compare fingerprints. Applying a delta twice is wrong as well.

Everything comes as numpy arrays of unsigned elements, or as tensors of bits (see `as_bits`) on one device; the result
is of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import CorruptBlockError
from ..packed import PackedChanges, PackedUnits
from .classes import BF16, BLOCK, FP8, FP16, FP32, MAX_CLASSES, Classes, Exponent

__all__ = [
    "BF16",
    "BLOCK",
    "FP8",
    "FP16",
    "FP32",
    "MAX_CLASSES",
    "Classes",
    "CorruptBlockError",
    "Exponent",
    "decode",
    "encode",
    "unpack",
    "unpack_all",
]

_WIDTHS = (1, 2, 4)


@overload
def encode(
    old: NDArray[Any],
    positions: NDArray[np.int64],
    values: NDArray[Any],
    class_map: Classes,
    exponent: Exponent | tuple[int, int],
) -> NDArray[np.uint8]: ...


@overload
def encode(
    old: Tensor, positions: Tensor, values: Tensor, class_map: Classes, exponent: Exponent | tuple[int, int]
) -> Tensor: ...


def encode(old: Any, positions: Any, values: Any, class_map: Classes, exponent: Exponent | tuple[int, int]) -> Any:
    """Encode the changes of a part.

    Args:
        old: uint8, uint16 or uint32 [n] (as tensor uint8, int16 or int32), contiguous; the elements the receiver
            holds. With one class only the changed ones are read (and the blocks that are sent as a copy).
        positions: int64[k], strictly ascending, below n.
        values: old's dtype [k], the new elements there; each differs from the old one.
        class_map: the classes; any map codes any change, a fitted one in fewer bits.
        exponent: (shift, mask) of the exponent byte, as `BF16`.

    Returns:
        uint8[size], at most 1.0001 times a dense copy and 64 bytes; empty for no change.

    Raises:
        TypeError: arrays of other types.
        ValueError: positions out of order or range, a value that is no change, or classes that do not fit.

    Memory beside the result: about 50 bytes for each change of a block in each thread; on a GPU see `gpu`.
    """
    if isinstance(old, Tensor):
        from . import tensors

        return tensors.encode(old, positions, values, class_map, Exponent(*exponent))
    exponent = _check(class_map, exponent, old)
    if positions.dtype != np.int64 or values.dtype != old.dtype or positions.shape != values.shape:
        raise TypeError(
            f"expected int64 positions and as many {old.dtype} values, got {positions.dtype}{list(positions.shape)} "
            f"and {values.dtype}{list(values.shape)}"
        )
    if positions.size and (positions[0] < 0 or positions[-1] >= old.size or not (positions[1:] > positions[:-1]).all()):
        raise ValueError(f"expected strictly ascending positions in 0..{old.size - 1}")
    from . import cpu

    positions, values = np.require(positions, requirements=["C", "W"]), np.require(values, requirements=["C", "W"])
    return cpu.encode(old, positions, values, class_map, exponent)


@overload
def decode(
    data: NDArray[np.uint8],
    n: int,
    old: NDArray[Any] | Callable[[NDArray[np.int64]], NDArray[Any]],
    class_map: Classes,
    exponent: Exponent | tuple[int, int],
    dtype: Any = None,
) -> tuple[NDArray[np.int64], NDArray[Any]]: ...


@overload
def decode(
    data: Tensor,
    n: int,
    old: Tensor | Callable[[Tensor], Tensor],
    class_map: Classes,
    exponent: Exponent | tuple[int, int],
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]: ...


def decode(
    data: Any, n: int, old: Any, class_map: Classes, exponent: Exponent | tuple[int, int], dtype: Any = None
) -> Any:
    """Inverse of `encode`.

    Args:
        data: uint8[size], what `encode` returned.
        n: elements of the part.
        old: uint8, uint16 or uint32 [n], contiguous, as the encoder had it; with one class also a function that
            returns the old elements at int64 positions, called once.
        class_map, exponent: the encoder's.
        dtype: of the elements; needed when `old` is a function.

    Returns:
        positions int64[k] strictly ascending, values [k]. A block that was sent as a copy gives all its elements.

    Raises:
        CorruptBlockError: `data` is nothing that `encode` returns for these arguments.
        TypeError, ValueError: arguments that do not fit each other.

    Memory: the result, 6 bytes for each change, and about 20 for each change of a block in each thread. Whatever the
    bytes say, at most n and at most 8 changes a byte are believed. On a GPU see `gpu`.
    """
    if isinstance(data, Tensor):
        from . import tensors

        return tensors.decode(data, n, old, class_map, Exponent(*exponent), dtype)
    if isinstance(old, np.ndarray):
        exponent = _check(class_map, exponent, old)
        if old.size != n:
            raise ValueError(f"expected {n} old elements, got {old.size}")
        dtype = old.dtype
    else:
        if class_map.number != 1 or dtype is None:
            raise TypeError("expected the old elements as an array; a function (and dtype) will do for one class only")
        exponent = _check(class_map, exponent, np.empty(0, dtype))
    if data.dtype != np.uint8 or data.ndim != 1:
        raise TypeError(f"expected uint8 data, got {data.dtype}{list(data.shape)}")
    from . import cpu

    return cpu.decode(data, n, dtype, old, class_map, exponent)


def unpack(
    data: NDArray[np.uint8],
    n: int,
    old: NDArray[Any] | None,
    class_map: Classes,
    exponent: Exponent | tuple[int, int],
    dtype: Any,
) -> PackedChanges:
    """`decode` of arrays up to the old values: how far each element moves is left for whoever writes it.

    Args:
        data, n, class_map, exponent: as `decode` takes them.
        old: as the encoder had it; None with one class.
        dtype: of the elements.

    Raises:
        CorruptBlockError: as `decode`, except for a value that moves out of its type: `PackedChanges.values` and
            `scatter_packed` find that.
        TypeError, ValueError: as `decode`.
    """
    if old is None and class_map.number != 1:
        raise TypeError("expected the old elements; only one class can do without")
    if old is not None and (old.size != n or old.dtype != dtype):
        raise ValueError(f"expected {n} old elements of {np.dtype(dtype)}, got {old.size} of {old.dtype}")
    exponent = _check(class_map, exponent, np.empty(0, dtype) if old is None else old)
    from . import cpu

    return cpu.unpack(data, n, dtype, old, class_map, exponent)


def unpack_all(
    data: NDArray[np.uint8],
    sections: NDArray[np.int64],
    maps: Sequence[tuple[Classes, Exponent]],
    olds: Sequence[NDArray[Any] | None],
    dtype: Any,
) -> PackedUnits:
    """`unpack` of several units at once.

    Args:
        data: uint8[size], which has a message for each.
        sections: int64[units, 4]: where the message begins, its bytes, the elements of the unit, and which of `maps`.
        maps: classes and exponent.
        olds: of each unit, as `unpack` takes them; not looked at where there is one class.
        dtype: of the elements.

    Raises:
        CorruptBlockError: as `unpack`, for any of them.
        TypeError, ValueError: as `unpack`.
    """
    for known in maps:
        _check(*known, np.empty(0, dtype))
    several = np.array([classes.number > 1 for classes, _ in maps])[sections[:, 3]]
    for i in np.flatnonzero(several):
        old, n = olds[i], int(sections[i, 2])
        if old is None:
            raise TypeError("expected the old elements; only one class can do without")
        if old.size != n or old.dtype != dtype or not old.flags.c_contiguous:
            raise ValueError(f"expected {n} old elements of {np.dtype(dtype)}, got {old.size} of {old.dtype}")
    from . import cpu

    return cpu.unpack_all(data, sections, maps, olds, dtype)


def _check(class_map: Classes, exponent: Exponent | tuple[int, int], old: NDArray[Any]) -> Exponent:
    if old.dtype.kind != "u" or old.itemsize not in _WIDTHS or old.ndim != 1 or not old.flags.c_contiguous:
        raise TypeError(f"expected contiguous uint8, uint16 or uint32 elements, got {old.dtype}{list(old.shape)}")
    class_map.check(old.itemsize)
    exponent = Exponent(*exponent)
    if not (0 <= exponent.shift < 8 * old.itemsize and 0 < exponent.mask <= 255):
        raise ValueError(f"expected an exponent byte inside {old.itemsize}-byte elements, got {exponent}")
    return exponent
