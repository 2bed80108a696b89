"""``slipstream plan``, its files and its errors; and the workload files it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_events import checked

from slipstream.core.cli import main
from slipstream.core.graph import WorkloadError, read_workload
from slipstream.core.hooks import SlipstreamPlugins

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "example-workload.yaml"
SMALL = {
    "workers": 2,
    "pipelines": [
        {
            "name": name,
            "decode": {"iteration": 0.01, "per_request": 0.001, "prefill": 0.0001},
            "stages": {"logprob": 1.0, "train": 3.0, "sync": 0.5},
            "lengths": [[100, 300, 200, 800], [150, 250, 900, 100]],
            "group": 2,
        }
        for name in ("a", "b")
    ],
}


def plan(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *map(str, arguments)])
    return int(ended.value.code or 0)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "small.json"
    file.write_text(json.dumps(SMALL))
    return file


def test_the_plan_is_the_best_of_all_options_and_draws_itself(small, tmp_path, capsys):
    html, trace = tmp_path / "plan.html", tmp_path / "plan.json"
    assert plan(small, "--json", "--html", html, "--trace", trace) == 0
    found = json.loads(capsys.readouterr().out)
    seconds = {option["name"]: option["seconds"] for option in found["options"]}
    assert {"serial", "even split", "uneven split", "pool split", "greedy", "look-ahead", "round robin"} <= set(seconds)
    offered = {name: value for name, value in seconds.items() if name not in ("round robin", "threshold merge")}
    assert seconds[found["best"]] == min(offered.values())
    assert any("not measured" in note for note in found["notes"])
    events = [event for event in checked(trace.read_text()) if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in events) == pytest.approx(1e6 * seconds[found["best"]])
    assert html.read_text().count("<rect") == len(events)


def test_the_table_names_every_option(small, capsys):
    assert plan(small) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("serial", "greedy", "round robin", "over serial"))


def test_the_example_of_the_documentation_is_a_workload():
    workload = read_workload(EXAMPLE)
    assert [pipeline.name for pipeline in workload.pipelines] == ["math-4b", "agent-8b"]
    assert max(max(step) for step in workload.pipelines[0].lengths) == 8192


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workers": 0}, "workers: expected at least 1, got 0"),
        ({"workers": "four"}, "workers"),
        ({"worker": 4}, "worker"),
        ({"pipelines": []}, "expected at least one"),
        ({"pipelines": [SMALL["pipelines"][0]] * 2}, "different names, got a, a"),
        ({"pipelines": [{**SMALL["pipelines"][0], "lengths": [[1, 2], [3]]}]}, "equally many requests"),
        ({"pipelines": [{**SMALL["pipelines"][0], "lengths": [[0.5]]}]}, "at least one token, got 0.5"),
        ({"pipelines": [{**SMALL["pipelines"][0], "staleness": 2}]}, "staleness: expected 0 or 1, got 2"),
        ({"pipelines": [{**SMALL["pipelines"][0], "latency_cap": 0.5}]}, "latency_cap: expected at least 1"),
        ({"pipelines": [{**SMALL["pipelines"][0], "memory": {"decode": 0.2, "train": 1.2}}]}, "shares up to 1"),
    ],
)
def test_a_wrong_workload_is_named(small, change, message):
    small.write_text(json.dumps({**SMALL, **change}))
    with pytest.raises(WorkloadError, match=message):
        read_workload(small)


def test_the_schedulers_are_plugins():
    found = SlipstreamPlugins.installed().schedulers()
    assert set(found) >= {"graph", "greedy", "round_robin", "threshold_merge"}
    assert found["graph"].factory(margin=0.0).margin == 0.0
    assert found["greedy"].factory().policy == 0
