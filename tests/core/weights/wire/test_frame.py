"""Frames: identity, integrity and bounds."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.core.weights.wire import (
    Changes,
    CorruptFrameError,
    Identity,
    Range,
    TensorTable,
    changes_section,
    pack_frame,
    range_section,
    unpack_frame,
)

IDENTITY = Identity(run=12, base=3, target=4)
TABLE = TensorTable(numel=(100, 7), width=(2, 4))


def sections():
    dense = np.arange(200, dtype=np.uint8)
    changes = changes_section(0, np.array([5, 99]), dense[[10, 11, 198, 199]], dense, 100, 2)
    return [changes, range_section(1, 2, np.arange(12, dtype=np.uint8), 4)]


def test_sections_come_back_in_order():
    changes, part = unpack_frame(pack_frame(IDENTITY, 0, sections()), IDENTITY, 0, TABLE)
    assert isinstance(changes, Changes)
    assert isinstance(part, Range)
    assert changes.positions.tolist() == [5, 99]
    assert changes.values.tolist() == [10, 11, 198, 199]
    assert (part.tensor, part.first, part.values.tolist()) == (1, 2, list(range(12)))


def test_a_change_of_nearly_everything_travels_as_a_range():
    dense = np.arange(200, dtype=np.uint8)
    section = changes_section(0, np.arange(100), dense, dense, 100, 2)
    (part,) = unpack_frame(pack_frame(IDENTITY, 0, [section]), IDENTITY, 0, TABLE)
    assert isinstance(part, Range)
    assert part.values.tolist() == dense.tolist()


def test_an_empty_frame_is_a_frame():
    assert unpack_frame(pack_frame(IDENTITY, 0, []), IDENTITY, 0, TABLE) == []


@pytest.mark.parametrize(
    ("identity", "index"),
    [(IDENTITY._replace(run=13), 0), (IDENTITY._replace(base=2), 0), (IDENTITY._replace(target=5), 0), (IDENTITY, 1)],
    ids=["run", "base", "target", "index"],
)
def test_a_frame_of_something_else_is_refused(identity, index):
    with pytest.raises(CorruptFrameError, match="expected frame"):
        unpack_frame(pack_frame(IDENTITY, 0, sections()), identity, index, TABLE)


def test_every_flipped_byte_is_noticed():
    frame = pack_frame(IDENTITY, 0, sections())
    for at in range(len(frame)):
        damaged = frame[:at] + bytes([frame[at] ^ 0x40]) + frame[at + 1 :]
        with pytest.raises(CorruptFrameError):
            unpack_frame(damaged, IDENTITY, 0, TABLE)


def test_every_truncation_is_noticed():
    frame = pack_frame(IDENTITY, 0, sections())
    for size in range(len(frame)):
        with pytest.raises(CorruptFrameError):
            unpack_frame(frame[:size], IDENTITY, 0, TABLE)


@pytest.mark.parametrize(
    "table",
    [
        TensorTable((100,), (2,)),
        TensorTable((100, 4), (2, 4)),
        TensorTable((99, 7), (2, 4)),
        TensorTable((100, 7), (2, 2)),
    ],
    ids=["unknown tensor", "range past the end", "position past the end", "other width"],
)
def test_sections_that_do_not_fit_the_table_are_refused(table):
    with pytest.raises(CorruptFrameError):
        unpack_frame(pack_frame(IDENTITY, 0, sections()), IDENTITY, 0, table)
