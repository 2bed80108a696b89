"""Charts as a reader sees them: positions follow the values, nothing is cut, names cannot break out."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from trace_events import checked

from slipstream.core.charts import Counter, Span, document, gantt, heat_map, lines, perfetto, stacked_bars, table
from slipstream.core.charts.axes import MOST_COLUMNS, binned, round_values, short, value_scale

HOSTILE = "<script>\"&'"


def svg(chart: str) -> ElementTree.Element:
    """The chart's SVG, which is well-formed XML."""
    return ElementTree.fromstring(chart[chart.index("<svg") :])


def bars(chart: str) -> list[tuple[float, float]]:
    """(top, height) of each bar."""
    return [(float(rect.attrib["y"]), float(rect.attrib["height"])) for rect in svg(chart).iter("rect")]


def test_bars_are_as_high_as_their_values_and_stand_on_one_another():
    (low_top, low), (high_top, high), (_, single) = bars(stacked_bars([1, 2], [("a", [2, 4]), ("b", [1, 0])], "s", ""))
    assert low / high == pytest.approx(2, rel=0.01)
    assert high_top + high == pytest.approx(low_top, abs=0.2)
    assert single / low == pytest.approx(2, rel=0.01)


def test_a_bar_that_would_flatten_the_others_is_cut_and_says_its_value():
    chart = stacked_bars([1, 2, 3, 4], [("a", [150, 2, 2, 2]), ("b", [50, 2, 2, 2])], "s", "")
    found = bars(chart)
    assert found[1][1] > 60, "the others are seen"
    assert "↑ 200 s" in "".join(svg(chart).itertext())
    assert min(top for top, _ in found) >= 0


def test_a_line_breaks_where_there_is_no_value():
    chart = svg(lines([1, 2, 3, 4], [("a", [1.0, None, 3.0, 4.0])], "", ""))
    (path,) = (each.attrib["d"] for each in chart.iter("path") if each.attrib.get("class") == "line")
    assert (path.count("M"), path.count("L")) == (2, 1)
    assert len(list(chart.iter("circle"))) == 3


def test_equal_ratios_are_equal_distances_on_a_logarithmic_axis():
    chart = svg(lines([1, 2, 3], [("a", [1e3, 1e5, 1e7])], "B", "", logarithmic=True))
    first, second, third = (float(each.attrib["cy"]) for each in chart.iter("circle"))
    assert first - second == pytest.approx(second - third, abs=0.2)
    assert first > third


def test_a_heat_map_is_darker_where_the_value_is_larger():
    chart = heat_map([1, 2], [("low", [0.001, 0.001]), ("high", [0.1, None])], "%", "")
    shades = [each.attrib["fill"] for each in svg(chart).iter("path")]
    assert shades == ["var(--h0)", "var(--h7)"]
    assert [each.attrib["d"].count("M") for each in svg(chart).iter("path")] == [2, 1]
    assert "low: 0.1 %, mean" in chart


def test_a_long_run_is_drawn_as_means_of_neighbours():
    steps = list(range(1, 10_001))
    shown, (values,) = binned(steps, [[float(step) for step in steps]])
    assert len(shown) <= MOST_COLUMNS
    assert values[0] == pytest.approx(sum(steps[:63]) / 63)
    chart = heat_map(steps, [(f"layer {i}", [0.01] * len(steps)) for i in range(200)], "%", "")
    assert len(chart) < 400_000


def test_a_gantt_chart_has_a_bar_a_span_in_its_row_and_lane():
    spans = [
        Span(row="worker 0", group="a", name="decode", start=0, end=10, lane=0),
        Span(row="worker 1", group="b", name="train", start=10, end=30, lane=1, strength=0.5),
    ]
    first, second = svg(gantt(spans, "")).iter("rect")
    assert float(second.attrib["width"]) / float(first.attrib["width"]) == pytest.approx(2, rel=0.01)
    assert float(second.attrib["y"]) > float(first.attrib["y"])
    assert second.attrib["fill-opacity"] == "0.50"
    assert second[0].text == "b: train, 10.0 to 30.0 s"


def test_a_trace_has_a_process_a_row_and_counters_of_their_own():
    spans = [
        Span(row="gen", group="gen", name="step 1", start=0.5, end=2),
        Span(row="sync", group="x", name="y", start=2, end=3),
    ]
    counters = [Counter("bytes", 2.0, {"sent": 7, "lost": float("nan")}), Counter("empty", 2.0, {"x": float("inf")})]
    events = checked(perfetto(spans, counters))
    slices = [(each["pid"], each["name"], each["ts"], each["dur"]) for each in events if each["ph"] == "X"]
    assert slices == [(1, "step 1", 500_000, 1_500_000), (2, "y", 2_000_000, 1_000_000)]
    names = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert names == {1: "gen", 2: "sync", 3: "counters"}
    (counter,) = (each for each in events if each["ph"] == "C")
    assert (counter["pid"], counter["ts"], counter["args"]) == (3, 2_000_000, {"sent": 7})


def test_slices_that_cross_get_threads_of_their_own_and_those_that_nest_share_one():
    def span(name: str, start: float, end: float) -> Span:
        return Span(row="r", group="g", name=name, start=start, end=end)

    events = checked(perfetto([span("a", 0, 4), span("in a", 1, 2), span("across", 3, 5), span("b", 4, 6)]))
    threads = {each["name"]: each["tid"] for each in events if each["ph"] == "X"}
    assert threads["a"] == threads["in a"] == threads["b"] != threads["across"]
    assert [each["args"]["name"] for each in events if each["name"] == "thread_name"] == ["g", "g (2)"]


@pytest.mark.parametrize(
    "broken",
    [
        {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 0},
        {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 2, "dur": 3},
        {"ph": "C", "name": "a", "pid": 1, "tid": 0, "ts": 0, "args": {"x": None}},
        {"ph": "B", "name": "a", "pid": 1, "tid": 1, "ts": 0},
        {"ph": "X", "name": "a", "pid": 1, "tid": 9, "ts": 0, "dur": 1},
    ],
    ids=["no duration", "crosses", "no number", "another phase", "no thread"],
)
def test_the_check_of_traces_finds_what_is_wrong(broken: dict[str, object]):
    trace = json.loads(perfetto([Span(row="r", group="g", name="n", start=0, end=4e-6)]))
    trace["traceEvents"].append(broken)
    with pytest.raises((AssertionError, KeyError)):
        checked(json.dumps(trace))


@pytest.mark.parametrize(
    "chart",
    [
        stacked_bars([1], [(HOSTILE, [1.0])], "s", HOSTILE),
        lines([1], [(HOSTILE, [1.0])], "s", HOSTILE),
        heat_map([1], [(HOSTILE, [0.5])], "%", HOSTILE),
        gantt([Span(row=HOSTILE, group=HOSTILE, name=HOSTILE, start=0, end=1)], HOSTILE),
        table([[HOSTILE], [HOSTILE]]),
    ],
)
def test_a_name_cannot_break_out_of_its_place(chart: str):
    assert "<script" not in chart
    ElementTree.fromstring(f"<div>{chart}</div>")


@pytest.mark.parametrize("values", [[], [0.0], [-1.0, 1.0], [float("nan")], [1e-9, 1e9]])
@pytest.mark.parametrize("logarithmic", [False, True])
def test_every_set_of_values_has_a_scale(values: list[float], logarithmic: bool):
    scale = value_scale(values, logarithmic)
    assert scale.low < scale.high
    assert 2 <= len(scale.ticks()) <= 8


def test_numbers_are_short_and_round():
    assert [short(value, "B") for value in (0, 999, 5.26e6, 651e6, 3e12)] == [
        "0 B",
        "999 B",
        "5.26 MB",
        "651 MB",
        "3 TB",
    ]
    assert [short(0.0041, "%"), short(12345.6, "s"), short(0.25)] == ["0.41 %", "12,346 s", "0.25"]
    assert round_values(0, 11) == [0, 5, 10, 15]


def test_a_page_needs_nothing_else():
    page = document("t", lines([1], [("a", [1.0])], "", ""))
    assert not re.search(r"https?:|<script|<link|@import|src=", page)
    assert "prefers-color-scheme:dark" in page
