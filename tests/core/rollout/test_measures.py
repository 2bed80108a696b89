"""The numbers of a step."""

from __future__ import annotations

import pytest

from slipstream.core.rollout.measures import StepMeasures


def test_a_step_is_told_once_and_replicas_keep_their_numbers():
    measures = StepMeasures()
    for name in ("a", "b"):
        measures.joined(name)
    measures.sample(4, {"a": 3, "b": 1})
    measures.sample(0, {"a": 1, "b": 1})
    measures.admitted(2.0, 6)
    measures.admitted(0.0, 0)
    measures.answered("a", 100, 60, 30, 80)
    measures.answered("b", 50, None, 10, 50)
    values = measures.take()
    assert values.pop("hit_rate") == values.pop("replica_0/hit_rate") == pytest.approx(0.6)
    assert values == {
        "queue_mean": 2.0,
        "queue_max": 6,
        "wait_seconds_mean": 1.0,
        "wait_seconds_max": 2.0,
        "prompt_tokens": 100,
        "recomputed_tokens": 20,
        "imbalance": 1.5,
        "replica_0/running": 2.0,
        "replica_0/answers": 1,
        "replica_0/output_tokens": 30,
        "replica_1/running": 1.0,
        "replica_1/answers": 1,
        "replica_1/output_tokens": 10,
    }
    assert measures.take() == {}


def test_a_replica_that_left_counts_until_the_step_is_over():
    measures = StepMeasures()
    for name in ("a", "b"):
        measures.joined(name)
    measures.answered("a", 10, 0, 5, 0)
    measures.left("a")
    assert measures.take()["replica_0/output_tokens"] == 5
    measures.answered("b", 10, 0, 5, 0)
    assert "replica_0/answers" not in (values := measures.take())
    assert values["replica_1/answers"] == 1
    measures.left("b")
    measures.answered("b", 10, 0, 5, 0)  # a late one
    assert measures.take()["imbalance"] == 1
