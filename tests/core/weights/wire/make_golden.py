"""Write the golden frames in `golden/`. For a new format number only, never to make a test pass.

    .venv/bin/python tests/core/weights/wire/make_golden.py

`docs/wire-format.md` says what the files are. Everything comes from integers of a fixed generator, so they do not
depend on the machine.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.weights.wire import Encoders, Identity, pack_frame, range_section
from slipstream.core.weights.wire.capture import CapturedUnit, write_capture

FOLDER = Path(__file__).parent / "golden"
IDENTITY = Identity(0x0123456789ABCDEF, 41, 42)
INDEX = 3
WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1, "int64": 8}
LEVELS = (0, 1, 2)


class Elements(NamedTuple):
    """One unit before and after."""

    name: str
    dtype: str
    old: NDArray[Any]
    new: NDArray[Any]


class Old(NamedTuple):
    """`OldValues` over an array."""

    values: NDArray[Any]
    dtype: str

    copies = False

    @property
    def numel(self) -> int:
        return self.values.size

    def all(self) -> NDArray[Any]:
        return self.values

    def at(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        return self.values[positions]


def frames(unit: Elements) -> Iterator[tuple[str, bytes]]:
    """(name, frame) of the unit as a range where it is small, and of its changes at each level that knows the dtype."""
    if unit.old.size < 65_536:
        yield f"{unit.name}-range", pack_frame(IDENTITY, INDEX, [range_section(0, 0, unit.new)])
    positions = np.flatnonzero(unit.old != unit.new).astype(np.int64)
    for level in LEVELS if unit.dtype != "int64" else (0,):
        section = Encoders(level).section(0, Old(unit.old, unit.dtype), positions, unit.new[positions])
        yield f"{unit.name}-level{level}", pack_frame(IDENTITY, INDEX, [section])


def units() -> Iterator[Elements]:
    """Every dtype; several blocks, the last of them dense; every pair of special values."""
    for dtype in WIDTHS:
        yield changed(dtype, dtype, weights(dtype, 1000, seed=1), 30)
    repeated = np.tile(weights("bfloat16", 1000, seed=2), 263)[: 262_144 + 500]
    blocks = changed("blocks", "bfloat16", repeated, 300)
    blocks.new[262_144:] ^= (numbers(500, seed=3) % np.uint64(1 << 15) + np.uint64(1)).astype("<u2")
    yield blocks
    special = np.array([0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x7F7F, 0x7F80, 0xFF80, 0x7F81, 0x7FC0, 0xFFFF], "<u2")
    rest = weights("bfloat16", 4000, seed=4)
    old, new = np.repeat(special, special.size), np.tile(special, special.size)
    yield Elements("special", "bfloat16", np.concatenate((old, rest)), np.concatenate((new, rest)))


def numbers(count: int, seed: int) -> NDArray[np.uint64]:
    """uint64[count] of the SplitMix64 generator."""
    x = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)
    x *= np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def weights(dtype: str, count: int, seed: int) -> NDArray[Any]:
    """Random bits; those of bf16 are between 2^-13 and 2^-5."""
    width, random = WIDTHS[dtype], numbers(count, seed)
    if dtype != "bfloat16":
        return (random >> np.uint64(64 - 8 * width)).astype(f"<u{width}")
    exponent = np.uint64(114) + random % np.uint64(8)
    sign_and_mantissa = random >> np.uint64(32) & np.uint64(0x807F)
    return (sign_and_mantissa | exponent << np.uint64(7)).astype("<u2")


def changed(name: str, dtype: str, old: NDArray[Any], count: int) -> Elements:
    """About `count` elements with other low bits, one in eight with any other bits."""
    kind, new = numbers(count, seed=5), old.copy()
    places = np.unique(kind % np.uint64(old.size)).astype(np.int64)
    flips = kind[: places.size] >> np.uint64(40)
    small = flips & np.uint64(7) != 0
    new[places] ^= np.where(small, flips >> np.uint64(3) & np.uint64(1) | np.uint64(2), flips | np.uint64(1)).astype(
        old.dtype
    )
    return Elements(name, dtype, old, new)


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for unit in units():
        for which, values in (("old", unit.old), ("new", unit.new)):
            (FOLDER / f"{unit.name}.{which}.gz").write_bytes(gzip.compress(values.tobytes(), mtime=0))
        table = [CapturedUnit(unit.dtype, unit.old.size, (unit.name,))]
        for name, frame in frames(unit):
            write_capture(FOLDER / f"{name}.slipstream", table, [frame])


if __name__ == "__main__":
    main()
