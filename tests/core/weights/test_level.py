"""The level of a link follows bandwidth, codec speed and cores."""

from __future__ import annotations

import logging

import pytest

from slipstream.core.weights.level import COSTS, LevelChooser

ELEMENTS, CHANGES = 8_000_000_000, 48_000_000  # an 8B model, 0.6 % changed
MB = 1_000_000


def chooser(bandwidth, cores=16, changes=CHANGES):
    made = LevelChooser(cores)
    made.observe_link(100 * MB, 100 * MB / bandwidth)
    made._changes = changes
    return made


def test_without_a_measurement_the_fastest_codec_is_used():
    assert LevelChooser(1).choose(ELEMENTS, workers=1) == 0


@pytest.mark.parametrize(
    ("bandwidth", "cores", "level"),
    [
        (35_000 * MB, 16, 0),
        (2_840 * MB, 16, 0),
        (125 * MB, 16, 1),
        (12.5 * MB, 16, 2),
        (125 * MB, 1, 0),
        (1 * MB, 1, 2),
    ],
    ids=["RDMA", "25 Gbit/s", "1 Gbit/s", "100 Mbit/s", "1 Gbit/s, one core", "8 Mbit/s, one core"],
)
def test_the_level_of_real_links(bandwidth, cores, level):
    assert chooser(bandwidth, cores).choose(ELEMENTS, workers=1) == level


def test_more_receivers_behind_one_uplink_make_small_frames_worth_more():
    made = chooser(2_840 * MB)
    assert made.choose(ELEMENTS, workers=1) == 0
    assert made.choose(ELEMENTS, workers=16) > 0


def test_the_prediction_is_the_sum_of_codec_and_link():
    made = chooser(100 * MB, cores=2, changes=1_000_000)
    cost = COSTS[2]
    codec = (cost.encode[0] + cost.decode[0]) * 1e9 + (cost.encode[1] + cost.decode[1]) * 1e6
    assert made.predict(1_000_000_000, 3)[2] == pytest.approx(codec / 2 + 3 * cost.bits * 1e6 / 8 / (100 * MB))


def test_a_codec_that_is_slower_than_expected_is_avoided():
    made = chooser(125 * MB)
    assert made.choose(ELEMENTS, workers=1) == 1
    for _ in range(6):
        made.observe_codec(1, ELEMENTS, CHANGES, 60 * MB, seconds=5.0)
    assert made.choose(ELEMENTS, workers=1) != 1


def test_what_every_level_costs_does_not_count_against_the_first_that_was_measured():
    """SmolLM2 on a busy machine, one host: 273 tensors of Python overhead, then level 1 took 1.3 s instead of 0.2."""
    made = chooser(1_000 * MB, cores=2, changes=650_000)
    for _ in range(3):
        assert made.choose(135_000_000, workers=1) == 0
        made.observe_codec(0, 135_000_000, 650_000, 2 * MB, seconds=0.06)


def test_measured_sizes_replace_the_usual_ones():
    made = chooser(125 * MB)
    made.observe_codec(1, ELEMENTS, CHANGES, 150 * MB, seconds=0.11)
    assert made.choose(ELEMENTS, workers=1) != 1


def test_small_updates_say_nothing_of_speed_or_bandwidth():
    made = chooser(125 * MB)
    before = made.predict(ELEMENTS, 1)
    made.observe_link(10_000, seconds=1.0)
    made.observe_codec(1, ELEMENTS, CHANGES, 10_000, seconds=1.0)
    assert made.predict(ELEMENTS, 1) == before


def test_a_change_of_level_is_logged_with_its_reasons(caplog):
    made = chooser(125 * MB)
    with caplog.at_level(logging.INFO):
        made.choose(ELEMENTS, workers=1)
        made.choose(ELEMENTS, workers=1)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("codec level 1 (level 0 ")
    assert "bandwidth 125 MB/s, 16 cores" in message


def test_a_delta_without_changes_teaches_nothing():
    made = LevelChooser(1)
    made.observe_codec(0, ELEMENTS, 0, 100 * MB, 1.0)
    assert (made._slowness, made._bits, made._changes) == ({}, {}, 0)
