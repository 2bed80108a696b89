"""Frames: identity, integrity and bounds."""

from __future__ import annotations

import numpy as np
import pytest
from unit_values import Old

from slipstream.core.weights.wire import (
    CorruptFrameError,
    Encoders,
    Identity,
    Packed,
    Range,
    UnitTable,
    pack_frame,
    range_section,
    unpack_frame,
)

IDENTITY = Identity(run=12, base=3, target=4)
TABLE = UnitTable(numel=(100, 7), width=(2, 4))


OLD = Old(np.zeros(100, np.uint16), "bfloat16")


def sections():
    changes = Encoders(0).section(0, OLD, np.array([5, 99]), np.array([10, 198], np.uint16))
    return [changes, range_section(1, 2, np.arange(3, dtype=np.uint32))]


def unpack(frame, identity=IDENTITY, index=0, table=TABLE):
    return unpack_frame(frame, identity, index, table, lambda unit: OLD)


def test_sections_come_back_in_order():
    changes, part = unpack(pack_frame(IDENTITY, 0, sections()))
    assert isinstance(changes, Packed)
    assert isinstance(part, Range)
    assert changes.positions.tolist() == [5, 99]
    assert changes.values.tolist() == [10, 198]
    assert (part.unit, part.first, part.values.tolist()) == (1, 2, [0, 1, 2])


def test_a_change_of_nearly_everything_travels_as_a_range():
    old = Old(np.arange(1000, 1100, dtype=np.uint16), "bfloat16")
    section = Encoders(0).section(0, old, np.arange(1, 100), np.arange(99, dtype=np.uint16))
    (part,) = unpack(pack_frame(IDENTITY, 0, [section]))
    assert isinstance(part, Range)
    assert part.values.tolist() == [1000, *range(99)]


def test_changes_are_refused_where_only_ranges_are_expected():
    with pytest.raises(CorruptFrameError, match="unexpected mode"):
        unpack_frame(pack_frame(IDENTITY, 0, sections()), IDENTITY, 0, TABLE)


def test_an_empty_frame_is_a_frame():
    assert unpack(pack_frame(IDENTITY, 0, [])) == []


@pytest.mark.parametrize(
    ("identity", "index"),
    [(IDENTITY._replace(run=13), 0), (IDENTITY._replace(base=2), 0), (IDENTITY._replace(target=5), 0), (IDENTITY, 1)],
    ids=["run", "base", "target", "index"],
)
def test_a_frame_of_something_else_is_refused(identity, index):
    with pytest.raises(CorruptFrameError, match="expected frame"):
        unpack(pack_frame(IDENTITY, 0, sections()), identity, index)


def test_every_flipped_byte_is_noticed():
    frame = pack_frame(IDENTITY, 0, sections())
    for at in range(len(frame)):
        damaged = frame[:at] + bytes([frame[at] ^ 0x40]) + frame[at + 1 :]
        with pytest.raises(CorruptFrameError):
            unpack(damaged)


def test_every_truncation_is_noticed():
    frame = pack_frame(IDENTITY, 0, sections())
    for size in range(len(frame)):
        with pytest.raises(CorruptFrameError):
            unpack(frame[:size])


@pytest.mark.parametrize(
    "table",
    [
        UnitTable((100,), (2,)),
        UnitTable((100, 4), (2, 4)),
        UnitTable((100, 7), (2, 2)),
    ],
    ids=["unknown unit", "range past the end", "other width"],
)
def test_sections_that_do_not_fit_the_table_are_refused(table):
    with pytest.raises(CorruptFrameError):
        unpack(pack_frame(IDENTITY, 0, sections()), table=table)


def test_positions_past_the_end_are_refused():
    shorter = Old(np.zeros(99, np.uint16), "bfloat16")
    with pytest.raises(CorruptFrameError, match="out of order"):
        unpack_frame(pack_frame(IDENTITY, 0, sections()), IDENTITY, 0, TABLE, lambda unit: shorter)
