"""A unit at the base version, for codec tests."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Old(NamedTuple):
    """`OldValues` over an array."""

    values: NDArray[np.unsignedinteger]
    dtype: str

    copies = False

    @property
    def numel(self) -> int:
        return self.values.size

    def all(self) -> NDArray[np.unsignedinteger]:
        return self.values

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.unsignedinteger]:
        return self.values[positions]


DTYPE_OF_WIDTH = {1: "float8_e4m3fn", 2: "bfloat16", 4: "float32", 8: "float64"}
