"""`make bench-sync` in small: each part runs, and what it promises about bytes is right."""

from __future__ import annotations

import column_shards
import pytest
import receiving
import sizes


def test_sizes_are_measured_on_streams_that_come_back():
    series = next(sizes.synthetic(1 << 20))
    found = sizes.measure(series)
    assert 0 < found.bytes["level 2"] < found.bytes["level 1"] < found.bytes["level 0"] < found.bytes["dense"]
    assert found.bytes["level 2"] > found.bound / 8
    assert len(list(sizes.bars(series, found))) == 3


def test_the_worst_case_is_a_copy():
    rows = [{"level": level, "B/tensor over 1.0001 x dense": excess} for _, level, excess in sizes.worst(100_000)]
    assert all(bar.ok for bar in sizes.worst_bars(rows))


def test_a_worker_is_timed_at_every_level():
    rows = list(receiving.times(1 << 20, [0.001, 0.01], rounds=1))
    assert [row["level"] for row in rows] == [0, 1, 2] * 2
    assert all(row["sync ms"] > 0 and row["write ms"] > 0 for row in rows)


@pytest.mark.parametrize("counts", [(8, 96)])
def test_many_tensors_are_staged_and_applied(counts: tuple[int, ...]):
    rows = list(receiving.many_tensors(counts, rounds=1))
    assert [row["tensors"] for row in rows] == list(counts)
    assert all(row["changes"] > 0 for row in rows)


@pytest.mark.parametrize("level", [1, 2])
def test_column_shards_arrive_either_way(level):
    """`measure` compares what workers decode."""
    shards, relay = column_shards.measure(column_shards.Matrix(512, 1024, 3e-6, 4), level, rounds=1)
    assert relay[1] <= shards[1] < 1.1 * relay[1], "bytes on the link"
    assert all(seconds > 0 for seconds in (*shards[2::2], *relay[2:]))
