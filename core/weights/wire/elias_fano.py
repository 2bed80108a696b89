"""Level 0: Elias-Fano positions and absolute values, in independent blocks of 65,536 elements.

Idempotent (a block may be applied twice), needs no old value at the receiver, and costs 8 to 10 bits a position at the
0.5-2 % densities of RL updates. Layout of one block, all little-endian, byte-aligned:

    u32 block index | u32 word = (count - 1) | mode << 16 | low width << 20
    mode SPARSE: low plane   ceil(count * l / 8) bytes       the l low bits of each position
                 high plane  ceil((count + (n >> l) + 1) / 8) bytes   bit (j + (position_j >> l)) set for each j
                 values      count * width bytes             in position order
    mode DENSE:  values      n * width bytes                 every element of the block (count = n)

`n` is the number of elements of the block (the last one is shorter); `l` minimises the exact size; a block is DENSE
when that is smaller. Blocks without a change are not stored.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.core.weights.tensors import DTYPES
from slipstream.core.weights.wire.unit import I64, Bits, OldValues, bits_dtype
from slipstream.triton_kernels import threads
from slipstream.triton_kernels.errors import CorruptBlockError

_BLOCKS_A_TASK = 16

U8 = NDArray[np.uint8]


class Encoder:
    """`encode` as a codec's encoder; it keeps nothing from one unit to the next."""

    def encode(self, old: OldValues, positions: I64, values: Bits) -> U8:
        """See `encode`."""
        return encode(old, positions, values)

    def finish(self) -> None:
        """Nothing to decide."""


def encode(old: OldValues, positions: I64, values: Bits) -> U8:
    """Encode the changes of one unit.

    Args:
        old: the unit at the base version; read only where a dense block needs what did not change.
        positions: int64[changes], strictly ascending element indices below `old.numel`.
        values: unsigned[changes], the new elements.

    Returns:
        uint8[size], the stored blocks one after another; empty when nothing changed.
    """
    from slipstream.core.weights.wire import elias_fano_cpu as cpu

    numel, width = old.numel, values.itemsize
    plan = cpu.plan(positions, numel, width)
    blocks = plan[1].size
    out = np.empty(int(plan[2][-1]), np.uint8)
    dense = old.all() if cpu.has_dense(plan, numel, width) else values[:0]
    as_bytes = np.ascontiguousarray(values).view(np.uint8), np.ascontiguousarray(dense).view(np.uint8)
    threads.run(
        lambda begin, end: cpu.write(positions, *as_bytes, numel, width, plan, out, begin, end),
        threads.split(blocks, _BLOCKS_A_TASK),
    )
    return out


_ERRORS = {
    1: "it is truncated or has trailing bytes",
    2: "block indices are out of order or out of range",
    3: "a block header has an unknown mode or an impossible count",
}


def decode(data: U8, old: OldValues) -> tuple[I64, Bits]:
    """Inverse of `encode`; old values are not read.

    Returns:
        positions int64[changes] strictly ascending, values unsigned[changes].

    Raises:
        CorruptBlockError: `data` is not a run of valid blocks of such a unit.
    """
    from slipstream.core.weights.wire import elias_fano_cpu as cpu

    numel, width = old.numel, DTYPES[old.dtype].itemsize
    error, offsets, before = cpu.scan(data, numel, width)
    if error:
        raise CorruptBlockError(f"cannot decode {data.size} bytes for a unit of {numel} elements: {_ERRORS[error]}")
    positions = np.empty(int(before[-1]), np.int64)
    values = np.empty(int(before[-1]) * width, np.uint8)
    corrupt = threads.run(
        lambda begin, end: cpu.read(data, numel, width, offsets, before, positions, values, begin, end),
        threads.split(offsets.size, _BLOCKS_A_TASK),
    )
    if sum(corrupt):
        raise CorruptBlockError(
            f"cannot decode {data.size} bytes for a unit of {numel} elements: positions out of order"
        )
    return positions, values.view(bits_dtype(width))
