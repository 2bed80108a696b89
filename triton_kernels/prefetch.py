"""Memory for compiled loops: by address, and asked for before it is needed so that many cache misses run at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from .jit import jit

AHEAD = 128
"""Elements; enough to hide a miss, and their lines fit the second-level cache. On Zen 4, scattering 1.2 % of 36M
elements took 13.3 ns a change without, 4.8 with 32, 2.2 with 128."""


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Bring array[index] into the second-level cache, to be written; the index must be inside."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        found = context.make_array(kind)(context, builder, args[0])
        place = cgutils.get_item_pointer(context, builder, kind, found, [args[1]], wraparound=False)
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        signature_of = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, signature_of, "llvm.prefetch.p0")
        for_writing, second_level, data = (ir.Constant(number, n) for n in (1, 2, 1))
        builder.call(function, [builder.bitcast(place, pointer), for_writing, second_level, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


@jit
def array_at(address: int, size: int, like: Any) -> Any:
    """The array of `size` elements, of the type of `like`, at an address; whoever calls keeps its owner alive."""
    return carray(_pointer(address), (size,), like.dtype)


@jit
def gather(array: NDArray[Any], positions: NDArray[np.int64], out: NDArray[Any]) -> None:
    """out = array[positions], all of them inside."""
    last = positions.size - 1
    for n in range(positions.size):
        prefetch(array, positions[min(n + AHEAD, last)])
        out[n] = array[positions[n]]


@jit
def put(array: NDArray[Any], positions: NDArray[np.int64], values: NDArray[Any]) -> None:
    """array[positions] = values, all of them inside."""
    last = positions.size - 1
    for n in range(positions.size):
        prefetch(array, positions[min(n + AHEAD, last)])
        array[positions[n]] = values[n]
