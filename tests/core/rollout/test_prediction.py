"""Remaining work, finish estimates and head starts."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.rollout import FinishedLengths, HeadStart, LengthModel, StepCosts, StudiedGain
from slipstream.core.rollout.finish import finish_seconds, finish_seconds_reference
from slipstream.core.rollout.prediction import Lengths


def finished(tokens: int, turns: int = 1, inputs: int = 0) -> FinishedLengths:
    return FinishedLengths(tokens, inputs, turns)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=50), st.floats(0, 12_000))
def test_mean_excess_is_the_mean_of_what_is_beyond(values, length):
    beyond = [each - length for each in values if each > length]
    expected = sum(beyond) / len(beyond) if beyond else 0.1 * length
    assert Lengths(values).mean_excess(length) == pytest.approx(expected, abs=1e-6)


def test_finished_siblings_pull_a_group_from_the_mean():
    model = LengthModel()
    model.start_step([finished(100)] * 10)
    assert model.group_output("g") == 100
    model.ended("a", "g", finished(400))
    assert model.group_output("g") == 250
    assert model.group_output("h") == 100, "the mean is the last step's until 8 have ended"


def test_siblings_that_run_on_count_as_evidence():
    """Those that finished are the short ones: without the others a group with a long tail would look short."""
    model = LengthModel()
    model.start_step([finished(100)] * 9 + [finished(10_000)])
    model.ended("a", "g", finished(50))
    short = model.group_output("g")
    assert model.progress("b", "g", 3000)
    assert model.group_output("g") > 3000 / 3 > short
    assert not model.progress("b", "g", 3100), "a little more changes nothing"
    assert not model.progress("c", "g", 20)


def test_an_earlier_epoch_counts_as_siblings():
    model = LengthModel()
    model.start_step([finished(100)] * 8, known={"g": 1000.0})
    assert model.group_output("g") == pytest.approx((4 * 1000 + 100) / 5)
    assert model.knows("g")
    assert not model.knows("h")


def test_the_last_step_becomes_history():
    model = LengthModel()
    for name in range(9):
        model.ended(name, 0, finished(500, turns=3, inputs=250))
    model.start_step()
    assert model.mean == 500
    assert model.growth(0, "new") == pytest.approx(500 * 1.5)
    assert model.remaining_turns(0, "new") == pytest.approx(3)
    assert not model.single_turn


def test_the_error_of_predictions_is_stated():
    model = LengthModel()
    model.start_step([finished(100)] * 8)
    for name, tokens in enumerate((50, 150)):
        assert model.guess(name, name) == 100
        model.ended(name, name, finished(tokens))
    assert model.errors.count == 2
    assert model.errors.relative == pytest.approx(0.5)
    assert model.errors.log_deviation > 0


def test_the_group_mean_predicts_better_than_the_mean_of_all():
    chance = random.Random(3)
    model, plain = LengthModel(), 0.0
    model.start_step([finished(round(1000 * chance.lognormvariate(0, 1))) for _ in range(200)])
    error = total = 0.0
    for group in range(100):
        level = 1000 * chance.lognormvariate(0, 1)
        for sample in range(8):
            tokens = max(1, round(level * chance.lognormvariate(0, 0.3)))
            error += abs(model.group_output(group) - tokens)
            plain += abs(model.mean - tokens)
            total += tokens
            model.ended((group, sample), group, finished(tokens))
    assert error < 0.6 * plain


@given(
    st.lists(st.tuples(st.floats(1, 5000), st.floats(0, 50_000)), max_size=30),
    st.floats(0.25, 1),
)
def test_the_finish_estimate_is_its_loop(live, duty):
    remaining = np.array([each[0] for each in live])
    context = np.array([each[1] for each in live])
    expected = finish_seconds_reference(remaining.tolist(), context.tolist(), duty, StepCosts())
    assert finish_seconds(remaining, context, duty, StepCosts()) == pytest.approx(expected, rel=1e-9)


def test_a_head_start_pays_under_load_and_is_off_in_the_tail():
    rule = HeadStart()
    assert rule.tokens(16.0, 400.0) == 256, "any length is cheap when other groups fill the batch"
    assert 0 < rule.tokens(2.0, 400.0) <= 128
    assert rule.tokens(0.5, 400.0) == 0, "the tail"
    assert rule.tokens(16.0, 20.0) == 0, "nothing to copy from that would not be the whole answer"
    assert HeadStart(drafting_share=0.0).tokens(16.0, 400.0) == 0


def test_the_studied_gain_is_its_table():
    gain = StudiedGain()
    assert gain.tokens_per_step(0, 400) == 1.0
    assert gain.tokens_per_step(128, 400) == pytest.approx(3.02 / 2.26, rel=0.01)
    assert gain.tokens_per_step(10_000, 400) == gain.gains[-1]
