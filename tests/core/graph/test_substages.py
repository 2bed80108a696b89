"""Cutting recorded steps into sub-stages, and predicting the next step."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.core.graph import (
    ActiveCurve,
    DecodeCost,
    GraphError,
    StageKind,
    StageSeconds,
    StepHistory,
    SubStageGraph,
    curve_of_lengths,
    cut,
)

COST = DecodeCost(iteration=0.010, per_request=0.001, prefill=0.0001)
STAGES = ((StageKind.LOGPROB, 2.0), (StageKind.TRAIN, 5.0), (StageKind.SYNC, 1.0))


def test_a_curve_follows_from_lengths():
    curve = curve_of_lengths(np.array([100.0, 300.0, 100.0]), COST, prompt_tokens=50)
    assert curve.active == (3, 1)
    assert curve.seconds == pytest.approx((0.0, 1.3, 1.3 + 200 * 0.011))
    assert curve.prefill == pytest.approx(3 * 50 * 0.0001)


def test_a_step_is_cut_where_the_load_changes_and_joined_at_the_barrier():
    # u = 5/15, 2/12, then all wait for tools, then 1/11: classes 3 (0.2 to 0.35), 2 (0.1 to 0.2), 1 (0.05 to 0.1)
    first = ActiveCurve((0.0, 4.0, 5.0, 7.0, 9.0), (5, 2, 0, 1), prefill=0.5)
    second = ActiveCurve((0.0, 1.0, 2.0), (5, 4))  # u = 5/15 and 4/14: one class
    graph = cut("run", 7, [first, second], STAGES, COST)
    found = [(node.kind, node.workers, node.seconds, node.load) for node in graph.nodes]
    assert found == [
        (StageKind.PREFILL, (0,), 0.5, -1),
        (StageKind.DECODE, (0,), 4.0, 3),
        (StageKind.DECODE, (0,), 1.0, 2),
        (StageKind.TOOL_WAIT, (0,), 2.0, -1),
        (StageKind.DECODE, (0,), 2.0, 1),
        (StageKind.DECODE, (1,), 2.0, 3),
        (StageKind.LOGPROB, (0, 1), 2.0, -1),
        (StageKind.TRAIN, (0, 1), 5.0, -1),
        (StageKind.SYNC, (0, 1), 1.0, -1),
    ]
    assert set(graph.edges) == {(0, 1), (1, 2), (2, 3), (3, 4), (4, 6), (5, 6), (6, 7), (7, 8)}
    assert graph.critical_path() == pytest.approx(9.5 + 8.0)
    assert graph.work() == pytest.approx(9.5 + 2.0 + 16.0)
    assert SubStageGraph.from_json(graph.to_json()) == graph


def test_what_is_no_graph_is_refused():
    graph = cut("run", 0, [ActiveCurve((0.0, 1.0), (1,))], STAGES, COST)
    with pytest.raises(GraphError, match="expected edges from a smaller id"):
        SubStageGraph("run", 0, graph.nodes, ((2, 1),))
    with pytest.raises(GraphError, match="expected ids 0 to"):
        SubStageGraph("run", 0, graph.nodes[1:], ())
    with pytest.raises(GraphError, match="expected a sub-stage graph"):
        SubStageGraph.from_json(b'{"pipeline": 3}')
    with pytest.raises(GraphError, match="ascending seconds"):
        ActiveCurve((0.0, 2.0, 1.0), (3, 2))


def test_a_history_predicts_the_next_step_and_knows_its_error():
    history = StepHistory(weight=0.5)
    with pytest.raises(GraphError, match="at least one step"):
        history.predict(4)
    history.add(np.array([100.0, 200.0, 400.0]), StageSeconds(1.0, 2.0, 1.0))
    assert history.predict(3).error == 1.0
    history.add(np.array([200.0, 400.0, 800.0]), StageSeconds(2.0, 4.0, 2.0))
    predicted = history.predict(8)
    assert predicted.lengths[-1] == pytest.approx(600.0)
    assert predicted.lengths.size == 8
    assert np.all(np.diff(predicted.lengths) >= 0)
    assert predicted.stages == StageSeconds(1.5, 3.0, 1.5)
    assert predicted.error == pytest.approx(0.5)  # everything was twice as much
    with pytest.raises(GraphError, match="positive lengths"):
        history.add(np.array([0.0]), StageSeconds(1.0, 1.0, 1.0))


def test_steps_that_repeat_are_predicted_without_error():
    history = StepHistory()
    lengths = np.random.default_rng(0).lognormal(6.0, 0.8, 500)
    for _ in range(3):
        history.add(lengths, StageSeconds(1.0, 2.0, 0.5))
    predicted = history.predict(500)
    assert predicted.error == pytest.approx(0.0, abs=1e-12)
    assert predicted.lengths.mean() == pytest.approx(lengths.mean(), rel=0.02)
    assert predicted.lengths[-1] == lengths.max()
