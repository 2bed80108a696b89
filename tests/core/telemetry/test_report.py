"""The report: figures, advice and page of runs whose logs are known."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from run_logs import drafting, run, sync, write_log
from trace_events import checked

from slipstream.core.cli import main
from slipstream.core.telemetry import EventLog, StageFinished, StageStarted, read_events
from slipstream.core.telemetry.history import RunFileError, RunHistory, read_run
from slipstream.core.telemetry.records import LeasedStage, LogFull, RunStarted, record_of
from slipstream.core.telemetry.report import advice, comparison, figures, page, trace
from slipstream.core.telemetry.report.spans import lease_spans
from slipstream.plugins.verl.telemetry import step_of


class Structure(HTMLParser):
    """Opens and closes of a page; raises where they do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "slipstream.jsonl", run())


def slipstream(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, arguments)])
    return int(ended.value.code or 0)


def value(history: RunHistory, name: str) -> float | None:
    (found,) = (figure.value for figure in figures(history) if figure.name == name)
    return found


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path):
    written = run(steps=2)
    log = EventLog(tmp_path / "log")
    for record in written:
        log.write(record)
    found = [record_of(event) for event in read_events(tmp_path / "log")]
    assert all(record is not None and record.time > 1.7e9 and record.pid for record in found)
    assert [msgspec.structs.replace(record, time=0.0, pid=0) for record in found] == [
        msgspec.structs.replace(record, time=0.0) for record in written
    ]


def test_the_lines_of_a_step_cost_little(tmp_path: Path):
    """CPU time, for a step of a model with 60 layers: 0.15 ms here."""
    log, records = EventLog(tmp_path / "log"), run(steps=1, layers=60)
    log.write(records[0])
    start = time.thread_time()
    for record in records:
        log.write(record)
    assert time.thread_time() - start < 0.005
    assert (tmp_path / "log").stat().st_size < 8_000


@pytest.mark.parametrize("event", [{"kind": "of_the_future"}, {"kind": "weight_sync"}, {"kind": "step", "step": "x"}])
def test_what_this_version_does_not_know_is_left_out(event):
    assert record_of(event) is None


def test_fields_of_a_newer_version_are_left_out():
    assert record_of({"kind": "log_full", "bytes": 3, "colour": "red"}) == LogFull(bytes=3)


def test_the_figures_are_those_of_the_log(log: Path):
    history = read_run(log)
    deltas = [event for event in read_events(log) if event["kind"] == "weight_sync"][1:]
    assert value(history, "steps") == 12
    assert value(history, "seconds a step") == pytest.approx(11.0)
    assert value(history, "bytes a sync") == pytest.approx(sorted(each["payload_bytes"] for each in deltas)[5], rel=0.2)
    assert value(history, "drafts accepted") == pytest.approx(sum(min(0.7, 0.2 + 0.05 * s) for s in range(1, 13)) / 12)
    assert value(history, "prompt tokens found in caches") == pytest.approx(0.6)
    assert value(history, "reward, last step") == pytest.approx(0.54)
    assert [stage.end - stage.start for stage in history.stages[:4]] == pytest.approx([6, 1.5, 3, 0.5], abs=1e-6)


def test_audits_are_left_out_of_times_that_a_baseline_has_too(tmp_path: Path):
    records = [
        msgspec.structs.replace(each, audit_seconds=0.3) if getattr(each, "layers", None) else each for each in run()
    ]
    history = read_run(write_log(tmp_path / "log", records))
    assert value(history, "seconds a step") == pytest.approx(10.7)
    assert value(history, "weight sync, seconds a step") == pytest.approx(0.2)


def test_a_baseline_can_be_what_verl_wrote_about_a_run_without_slipstream(tmp_path: Path, log: Path):
    data = {"timing_s/step": 22.0, "timing_s/gen": 12.0, "timing_s/update_weights": 2.0, "critic/score/mean": 0.1}
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps({"step": step, "data": data}) + "\n" for step in range(1, 4)))
    rows = {row[0]: row[1:] for row in comparison([read_run(log)], read_run(metrics, [step_of]))}
    assert rows["seconds a step"] == ["22 s", "11 s  (2.00x)"]
    assert rows["weight sync, seconds a step"] == ["2 s", "0.5 s  (4.00x)"]
    assert rows["bytes a sync"][0] == ""
    assert step_of({"step": 1, "data": {"val/reward": 1.0}}) is None


def test_a_file_with_several_runs_shows_the_last_and_says_so(tmp_path: Path):
    history = read_run(write_log(tmp_path / "log", [*run(steps=3), *run(steps=5, start=1.8e9)]))
    assert (len(history.steps), history.earlier_runs) == (5, 1)
    assert any("earlier runs: 1" in each.found for each in advice(history))


def test_an_ordinary_run_gets_no_advice(log: Path):
    assert advice(read_run(log)) == []


STARTED = RunStarted(time=1e9, name="n", versions={}, settings={})
SHARES = {"model.layers.0": 0.5}


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([StageStarted(name="update_actor", step=3)], "ends in the middle of update_actor of step 3"),
        ([LogFull(bytes=3)], "reached its largest size"),
        ([RunStarted(time=1e9, name="n", versions={}, settings={}, format=99)], "newer slipstream"),
        ([sync(1e9, 0, 0, 1), sync(1e9, 1, 1, 2), sync(1e9, 2, 2, 3, SHARES)], "1 of 3 syncs after the first sent ev"),
        ([sync(1e9, 1, 1, 2, {f"l.{i}": 0.5 for i in range(24)})], "50 % of the weights change"),
        ([drafting(1e9, 1, 0.5, off_share=0.9)], "kept 90 % of the engines' steps without drafts"),
        ([drafting(1e9, 1, 0.1)], "10 % were accepted"),
        ([msgspec.structs.replace(sync(1e9, 1, 1, 2, SHARES), late_workers=1)], "missed earlier syncs"),
        ([msgspec.structs.replace(sync(1e9, 1, 1, 2, SHARES), unverified_tensors=2)], "2 tensors are loaded by"),
    ],
)
def test_what_deserves_a_look_is_said_with_what_to_do(tmp_path: Path, records, found: str):
    history = read_run(write_log(tmp_path / "log", [STARTED, *records]))
    (each,) = (each for each in advice(history) if found in each.found)
    assert each.do


def test_a_long_sync_names_its_longest_part(tmp_path: Path):
    slow = [
        msgspec.structs.replace(each, stage_seconds=0.5, deliver_seconds=6.5, apply_seconds=0.5)
        if getattr(each, "layers", None)
        else each
        for each in run()
    ]
    (each,) = advice(read_run(write_log(tmp_path / "log", slow)))
    assert "A sync takes 7 s, 64 % of a step; messages and transfer take 6 s of it" in each.found
    assert "level=2" in each.do


def test_the_page_is_well_formed_and_has_every_part(log: Path):
    text = page([read_run(log)], read_run(log))
    structure = Structure(text)
    assert structure.open == []
    for heading in ("Where a step's time goes", "Weight sync", "Changed weights by layer and version", "Drafting"):
        assert heading in structure.headings
    for heading in ("Rollout requests by replica", "Schedule of steps 9 to 12", "Reward"):
        assert heading in structure.headings
    assert "http" not in text.replace("http-equiv", "")


def test_the_page_does_not_tell_whose_home_it_came_from(log: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "home", lambda: log.parent)
    text = page([read_run(log)])
    assert f"~/{log.name}" in text
    assert str(log.parent) not in text


def test_runs_that_share_a_cluster_are_drawn_in_one_chart_with_their_waits(tmp_path: Path):
    def leased(name: str, began: float) -> RunHistory:
        stage = LeasedStage(time=began, pipeline=name, step=1, stage="rollout", began=began, seconds=4, waited=2)
        return read_run(write_log(tmp_path / name, [STARTED, stage]))

    runs = [leased("math", 1e9), leased("code", 1e9 + 4)]
    spans = [(span.row, span.start, span.end, span.strength) for span in lease_spans([run.leased[0] for run in runs])]
    assert spans == [("math", 0, 2, 0.25), ("math", 2, 6, 1), ("code", 4, 6, 0.25), ("code", 6, 10, 1)]
    assert "Runs on the shared cluster; pale: waiting for a lease" in Structure(page(runs)).headings


def test_the_trace_of_a_run_on_a_shared_cluster_has_one_clock(tmp_path: Path):
    """Leases and stages start at the first line of the log; stages overlap here, and get threads."""
    stages = [(1, 1e9 + 5, 3.0), (2, 1e9 + 6, 3.0)]
    records = [
        STARTED,
        *(StageStarted(time=began, name="gen", step=step) for step, began, _ in stages),
        *(StageFinished(time=began + seconds, name="gen", step=step) for step, began, seconds in stages),
        *(
            LeasedStage(time=0, pipeline="math", step=step, stage="rollout", began=began, seconds=seconds, waited=2)
            for step, began, seconds in stages
        ),
    ]
    events = checked(trace(read_run(write_log(tmp_path / "log", records))))
    starts = {(each["cat"], each["name"]): each["ts"] for each in events if each["ph"] == "X"}
    assert starts["gen", "step 1"] == starts["rollout", "step 1"] == 5_000_000
    assert starts["rollout", "step 1, waits"] == 3_000_000


def test_parts_that_a_run_has_not_are_left_out(tmp_path: Path):
    records = [each for each in run() if type(each).__name__ in ("RunStarted", "StepFinished")]
    headings = Structure(page([read_run(write_log(tmp_path / "log", records))])).headings
    assert "Drafting" not in headings
    assert "Weight sync" not in headings
    assert "Reward" in headings


def test_the_command_writes_page_and_trace_and_names_them(tmp_path: Path, log: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert slipstream(log.parent, "--baseline", log, "--perfetto", "run.trace") == 0
    printed = capsys.readouterr().out
    assert "written: slipstream-report.html" in printed
    assert (tmp_path / "slipstream-report.html").read_text().startswith("<!doctype html>")
    events = checked((tmp_path / "run.trace").read_text())
    slices = [each for each in events if each["ph"] == "X"]
    assert len(slices) == 12 * 4 + 13 * 2
    assert {"bytes sent", "drafts", "requests running"} == {each["name"] for each in events if each["ph"] == "C"}
    assert trace(read_run(log)) == (tmp_path / "run.trace").read_bytes()


def test_json_has_the_figures_the_advice_and_every_step(tmp_path: Path, log: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert slipstream(log, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    (only,) = found["runs"]
    assert {figure["name"]: figure["value"] for figure in only["figures"]}["steps"] == 12
    assert (len(only["steps"]), len(only["syncs"]), only["advice"]) == (12, 13, [])
    assert not (tmp_path / "slipstream-report.html").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "expected an event log or a folder with one"), ("hello\n", "found none of its lines"), ("", "none of its")],
)
def test_a_file_that_is_no_log_is_refused(tmp_path: Path, content, message):
    if content is not None:
        (tmp_path / "x").write_text(content)
    with pytest.raises(RunFileError, match=message):
        read_run(tmp_path / "x")
    with pytest.raises(RunFileError, match=r"expected slipstream\.jsonl in this folder"):
        read_run(tmp_path)


def test_a_log_that_is_being_written_can_be_shown(log: Path):
    log.write_bytes(log.read_bytes()[:-50])
    assert len(read_run(log).steps) == 11


@pytest.mark.skipif(shutil.which("chromium-headless-shell") is None, reason="chromium-headless-shell is not installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_draws_it_offline_in_light_and_dark(tmp_path: Path, log: Path, scheme: str):
    """Screenshots: the browser says nothing about errors, and the page is as light or dark as it was asked to be."""
    from PIL import Image

    (tmp_path / "page.html").write_text(page([read_run(log)]))
    options = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,3000"]
    if scheme == "dark":
        options.append("--blink-settings=preferredColorScheme=0")
    shot = tmp_path / "page.png"
    browser = ["chromium-headless-shell", *options, f"--user-data-dir={tmp_path}/profile", f"--screenshot={shot}"]
    subprocess.run([*browser, (tmp_path / "page.html").as_uri()], check=True, timeout=120, capture_output=True)
    with Image.open(shot) as image:
        colours = image.convert("RGB").getcolors(1 << 24)
    background = max(colours)[1]
    assert (min(background) > 240) if scheme == "light" else (max(background) < 60)
    assert len(colours) > 100, "charts, not a blank page"
