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

from slipstream.triton_kernels import threads
from slipstream.triton_kernels.errors import CorruptBlockError

__all__ = ["CorruptBlockError", "decode", "encode"]

_BLOCKS_A_TASK = 16

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]


def encode(positions: I64, values: U8, dense: U8, numel: int, width: int) -> U8:
    """Encode the changes of one tensor.

    Args:
        positions: int64[changes], strictly ascending flat element indices below `numel`.
        values: uint8[changes * width], the new elements, in position order.
        dense: uint8[numel * width], the whole new tensor (read only for blocks where copying is smaller).
        numel: elements of the tensor.
        width: bytes an element.

    Returns:
        uint8[size], the stored blocks one after another; empty when nothing changed.
    """
    from slipstream.core.weights.wire import elias_fano_cpu as cpu

    plan = cpu.plan(positions, numel, width)
    blocks = plan[1].size
    out = np.empty(int(plan[2][-1]), np.uint8)
    threads.run(
        lambda begin, end: cpu.write(positions, values, dense, numel, width, plan, out, begin, end),
        threads.split(blocks, _BLOCKS_A_TASK),
    )
    return out


_ERRORS = {
    1: "it is truncated or has trailing bytes",
    2: "block indices are out of order or out of range",
    3: "a block header has an unknown mode or an impossible count",
}


def decode(data: U8, numel: int, width: int) -> tuple[I64, U8]:
    """Inverse of `encode`.

    Returns:
        positions int64[changes] strictly ascending, values uint8[changes * width].

    Raises:
        CorruptBlockError: `data` is not a run of valid blocks of a tensor of `numel` elements.
    """
    from slipstream.core.weights.wire import elias_fano_cpu as cpu

    error, offsets, before = cpu.scan(data, numel, width)
    if error:
        raise CorruptBlockError(f"cannot decode {data.size} bytes for a tensor of {numel} elements: {_ERRORS[error]}")
    positions = np.empty(int(before[-1]), np.int64)
    values = np.empty(int(before[-1]) * width, np.uint8)
    corrupt = threads.run(
        lambda begin, end: cpu.read(data, numel, width, offsets, before, positions, values, begin, end),
        threads.split(offsets.size, _BLOCKS_A_TASK),
    )
    if sum(corrupt):
        raise CorruptBlockError(
            f"cannot decode {data.size} bytes for a tensor of {numel} elements: positions out of order"
        )
    return positions, values
