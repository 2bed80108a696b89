"""The event log: complete lines, bounded size, several writers."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.config import ConfigError, parse_config
from slipstream.core.telemetry import EventLog, check_path, event_log, read_events


def write_many(path: Path, writer: int, count: int, max_bytes: int) -> None:
    log = EventLog(path, max_bytes)
    for index in range(count):
        log.emit("tick", writer=writer, index=index, padding="x" * (index % 50))


def test_an_event_carries_time_process_kind_and_its_fields(tmp_path: Path):
    before = time.time()
    EventLog(tmp_path / "run" / "log").emit("weight_sync", version=3, seconds=0.5)
    (event,) = read_events(tmp_path / "run" / "log")
    assert before <= event.pop("time") <= time.time()
    assert event == {"pid": os.getpid(), "kind": "weight_sync", "version": 3, "seconds": 0.5}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (Path("a"), "a"),
        ("two\nlines", "two\nlines"),
        (float("nan"), None),
        ({"a": [1, (2,)]}, {"a": [1, [2]]}),
        (np.zeros(2), "[0. 0.]"),
    ],
)
def test_values_are_written_as_valid_json(tmp_path: Path, value, written):
    EventLog(tmp_path / "log").emit("e", value=value)
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line)["value"] == written


@pytest.mark.parametrize("name", ["time", "pid", "kind"])
def test_a_field_with_a_reserved_name_is_refused(tmp_path: Path, name: str):
    with pytest.raises(ValueError, match="rename the field"):
        EventLog(tmp_path / "log").emit("e", **{name: 1})


def test_several_processes_write_complete_lines_in_their_own_order(tmp_path: Path):
    path = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=write_many, args=(path, writer, 200, 1 << 20)) for writer in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    events = list(read_events(path))
    assert len(events) == len(path.read_text().splitlines()) == 600
    for writer in range(3):
        assert [event["index"] for event in events if event["writer"] == writer] == list(range(200))


def test_a_full_log_ends_with_one_line_for_all_writers_and_stays_within_its_size(tmp_path: Path):
    path = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=write_many, args=(path, writer, 100, 4096)) for writer in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    kinds = [event["kind"] for event in read_events(path)]
    assert kinds.count("log_full") == 1
    assert kinds[-1] == "log_full"
    assert 2048 < path.stat().st_size <= 4096


def test_a_closed_log_stays_closed_for_a_process_that_comes_later(tmp_path: Path):
    path = tmp_path / "log"
    first = EventLog(path, 1024)
    first.emit("large", text="x" * 2000)
    assert not first.enabled
    EventLog(path, 1024).emit("small")
    assert [event["kind"] for event in read_events(path)] == ["log_full"]


def test_a_forked_child_and_its_parent_share_the_log(tmp_path: Path):
    log = EventLog(tmp_path / "log")
    log.emit("parent")
    child = multiprocessing.get_context("fork").Process(target=log.emit, args=("child",))
    child.start()
    child.join(60)
    log.emit("parent")
    events = list(read_events(tmp_path / "log"))
    assert [event["kind"] for event in events] == ["parent", "child", "parent"]
    assert events[1]["pid"] == child.pid


@pytest.mark.parametrize("torn", ['{"kind":"tor', '{"kind":"tor\n'])
def test_a_torn_line_is_skipped(tmp_path: Path, torn: str):
    path = tmp_path / "log"
    path.write_text('{"kind":"whole"}\n' + torn)
    assert [event["kind"] for event in read_events(path)] == ["whole"]


def test_the_next_writer_ends_a_torn_line_before_its_own(tmp_path: Path):
    path = tmp_path / "log"
    path.write_text('{"kind":"whole"}\n{"kind":"tor')
    EventLog(path).emit("next")
    assert [event["kind"] for event in read_events(path)] == ["whole", "next"]


def test_a_log_that_cannot_be_written_warns_once_and_stops(tmp_path: Path, caplog):
    (tmp_path / "file").touch()
    log = EventLog(tmp_path / "file" / "log")
    log.emit("e")
    log.emit("e")
    assert not log.enabled
    assert len(caplog.records) == 1
    assert "cannot be written" in caplog.text


def test_closing_is_not_the_end(tmp_path: Path):
    log = EventLog(tmp_path / "log")
    log.emit("a")
    log.close()
    log.emit("b")
    assert [event["kind"] for event in read_events(tmp_path / "log")] == ["a", "b"]


def test_the_configuration_decides_whether_there_is_a_log(tmp_path: Path):
    silent = event_log(parse_config({}))
    silent.emit("e")
    assert not silent.enabled
    event_log(parse_config({"events": str(tmp_path / "log")})).emit("e")
    assert len(list(read_events(tmp_path / "log"))) == 1


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("file/run.jsonl", "file is not a folder"),
        ("file/deep/run.jsonl", "file is not a folder"),
        ("folder", "it is a folder"),
        ("new/deep/run.jsonl", None),
        ("folder/run.jsonl", None),
        ("file", None),
    ],
)
def test_a_path_is_checked_without_creating_anything(tmp_path: Path, path: str, problem: str | None) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    if problem is None:
        check_path(tmp_path / path)
    else:
        with pytest.raises(ConfigError, match=f"slipstream.events: expected a file that can be written.*{problem}"):
            check_path(tmp_path / path)
    assert sorted(tmp_path.rglob("*")) == before
