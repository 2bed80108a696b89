"""Frames from files: what was written once must be decoded for ever, and written again byte for byte."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from unit_values import Old

from slipstream.core.weights.tensors import DTYPES
from slipstream.core.weights.wire import (
    Encoders,
    Identity,
    Packed,
    Range,
    UnitTable,
    pack_frame,
    range_section,
    unpack_frame,
)
from slipstream.core.weights.wire.capture import read_capture
from slipstream.core.weights.wire.inspection import inspect_frame

FOLDER = Path(__file__).parent / "golden"
FILES = sorted(FOLDER.glob("*.slipstream"))
IDENTITY = Identity(0x0123456789ABCDEF, 41, 42)


def elements(name: str, which: str, width: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress((FOLDER / f"{name}.{which}.gz").read_bytes()), f"<u{width}")


def test_there_are_golden_frames_of_every_level_and_mode():
    described = [inspect_frame(frame) for file in FILES for frame in read_capture(file.read_bytes()).frames]
    found = {(section.mode, section.level) for frame in described for section in frame.sections}
    assert found == {("range", 0), ("changes", 0), ("changes", 1), ("changes", 2)}


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_golden_frame(file):
    (unit,), (frame,) = read_capture(file.read_bytes())
    width = DTYPES[unit.dtype].itemsize
    old, new = (elements(unit.tensors[0], which, width) for which in ("old", "new"))
    held = Old(old, unit.dtype)
    (section,) = unpack_frame(frame, IDENTITY, 3, UnitTable((unit.numel,), (width,)), lambda _: held)
    if isinstance(section, Range):
        assert np.array_equal(section.values, new)
        again = range_section(0, 0, section.values)
    else:
        assert isinstance(section, Packed)
        result = old.copy()
        result[section.positions] = section.values
        assert np.array_equal(result, new)
        differ = np.flatnonzero(old != new)
        again = Encoders(int(file.stem[-1])).section(0, held, differ, new[differ])
    assert pack_frame(IDENTITY, 3, [again]) == frame
