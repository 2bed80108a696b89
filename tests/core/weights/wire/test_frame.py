"""Frames: identity, integrity and bounds."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from unit_values import Old

from slipstream.core.weights.wire import (
    CorruptFrameError,
    Encoders,
    Identity,
    Packed,
    PackedSections,
    Range,
    UnitTable,
    class_levels,
    decode_frame,
    frame,
    pack_frame,
    range_section,
    unpack_frame,
)
from slipstream.core.weights.wire.frame import HEADER_BYTES

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


def several(level: int) -> tuple[bytes, UnitTable, list[Old]]:
    """A frame of six units, the largest of several blocks, in an order of their own."""
    rng = np.random.default_rng(level)
    sizes = (300_000, 1, 65_536, 600_000, 70, 65_537)
    olds = [Old(rng.integers(0x3C00, 0x3E00, size, np.uint16), "bfloat16") for size in sizes]
    encoders, made = Encoders(level), []
    for unit in (2, 0, 4, 5, 1, 3):
        old = olds[unit].values
        positions = np.flatnonzero(rng.random(old.size) < 0.01) if old.size > 100 else np.array([0])
        values = old[positions] ^ rng.integers(1, 4, positions.size, np.uint16)
        made.append(encoders.section(unit, olds[unit], positions, values))
    table = UnitTable(tuple(old.numel for old in olds), (2,) * len(olds))
    return pack_frame(IDENTITY, 0, made), table, olds


def outcome(*args: object) -> object:
    """What unpacking gives, in comparable form."""
    try:
        return [
            (s.unit, s.positions.tolist() if isinstance(s, Packed) else s.first, s.values.tolist())
            for s in unpack_frame(*args)
        ]
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_units_decoded_together_are_what_each_is_by_itself(level, monkeypatch):
    """Also when the frame was damaged before it was sealed, and then with the same error."""
    data, table, olds = several(level)
    found = decode_frame(data, IDENTITY, 0, table, olds.__getitem__)
    assert any(isinstance(section, PackedSections) and len(section.units) > 2 for section in found)
    rng = np.random.default_rng(level)
    body = bytearray(data[HEADER_BYTES:])
    refused = 0
    for attempt in range(40):
        bad = bytearray(body)
        if attempt:
            bad[rng.integers(len(bad)) if attempt % 2 else rng.integers(300)] ^= 1 << int(rng.integers(8))
        head = data[: HEADER_BYTES - 8]
        arguments = head + xxhash.xxh3_64_digest(head + bad)[::-1] + bad, IDENTITY, 0, table, olds.__getitem__
        first = outcome(*arguments)
        with monkeypatch.context() as patch:
            patch.setattr(frame, "_together", lambda body, at, table, old: (None, len(body)))
            assert first == outcome(*arguments)
        refused += isinstance(first, str)
    assert 5 < refused < 40


class ScatteredOld(Old):
    """One whose elements lie apart."""

    copies = True


def test_units_that_would_be_copied_are_decoded_some_at_a_time(monkeypatch):
    """Classing needs old elements one after another: how many are copied for that at a time is bounded."""
    data, table, olds = several(2)
    scattered = [ScatteredOld(*old) for old in olds]
    monkeypatch.setattr(class_levels, "COPIED", 400_000)
    found = decode_frame(data, IDENTITY, 0, table, scattered.__getitem__)
    groups = [s.units for s in found if isinstance(s, PackedSections)]
    assert len(groups) > 1
    assert sum(groups, ()) == (2, 0, 4, 5, 3)
    assert outcome(data, IDENTITY, 0, table, scattered.__getitem__) == outcome(
        data, IDENTITY, 0, table, olds.__getitem__
    )
