"""Files of frames, what `slipstream inspect` says of them, and channels that write them."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from toy_engine import ToyEngine, checkpoint
from typer.testing import CliRunner

from slipstream.core.cli.app import app
from slipstream.core.weights import InProcessHub, Publisher, PublisherSettings, Subscriber
from slipstream.core.weights.capturing import capturing
from slipstream.core.weights.wire import NO_BASE, CorruptFrameError, Identity, pack_frame, range_section
from slipstream.core.weights.wire.capture import CapturedUnit, read_capture, write_capture
from slipstream.core.weights.wire.inspection import inspect_frame

GOLDEN = Path(__file__).parent / "golden"


def seed_frame() -> bytes:
    return pack_frame(Identity(7, NO_BASE, 1), 0, [range_section(2, 5, np.arange(10, dtype=np.uint16))])


def test_frames_come_back_as_written(tmp_path):
    units = [CapturedUnit("bfloat16", 15, ("a", "b"))]
    frames = [seed_frame(), pack_frame(Identity(7, 1, 2), 0, [])]
    write_capture(tmp_path / "x", units, frames)
    assert read_capture((tmp_path / "x").read_bytes()) == (tuple(units), tuple(frames))
    assert read_capture(b"".join(frames)) == ((), tuple(frames))


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_truncated_file_is_refused(tmp_path, cut):
    write_capture(tmp_path / "x", [], [seed_frame()])
    with pytest.raises(CorruptFrameError):
        read_capture((tmp_path / "x").read_bytes()[:-cut])


def test_other_files_are_refused():
    with pytest.raises(CorruptFrameError, match="expected a frame"):
        read_capture(b"PK\x03\x04")


def test_a_seed_is_described_without_its_units():
    info = inspect_frame(seed_frame())
    (section,) = info.sections
    assert (info.base, info.target, info.checksum_ok) == (None, 1, True)
    assert (section.mode, section.unit, section.first, section.changes, section.bits_per_change) == (
        "range",
        2,
        5,
        10,
        41.6,
    )
    assert (section.tensors, section.elements, section.class_map) == ((), None, None)


def test_the_command_describes_levels_and_class_maps():
    outcome = CliRunner().invoke(app, ["inspect", str(GOLDEN / "blocks-level2.slipstream"), "--json"])
    assert outcome.exit_code == 0
    (frame,) = json.loads(outcome.output)
    (section,) = frame["sections"]
    assert (section["level"], section["tensors"], section["elements"]) == (2, ["blocks"], 262_644)
    assert len(section["class_map"]["orders"]) == len(section["class_map"]["edges"]) + 1
    table = CliRunner().invoke(app, ["inspect", str(GOLDEN / "blocks-level2.slipstream")])
    assert table.exit_code == 0
    assert "checksum ok" in table.output


def test_the_command_fails_for_a_damaged_frame(tmp_path):
    data = bytearray(seed_frame())
    data[-1] ^= 1
    (tmp_path / "x").write_bytes(data)
    outcome = CliRunner().invoke(app, ["inspect", str(tmp_path / "x"), "--json"])
    assert outcome.exit_code == 1
    assert json.loads(outcome.output)[0]["checksum_ok"] is False


def test_a_channel_keeps_every_update(tmp_path):
    publisher, worker = Publisher(PublisherSettings(level=2)), Subscriber(ToyEngine(), "rank 0")
    weights, channel = checkpoint(), None
    for step in range(2):
        hub = InProcessHub()
        channel = capturing(hub, tmp_path) if channel is None else channel.over(hub)
        thread = threading.Thread(target=worker.sync, args=([hub.connect("worker 0")], 60.0))
        thread.start()
        publisher.sync(weights.items(), channel, 1)
        thread.join()
        weights["o"][step, 0] += 1
    seed, delta = (read_capture(file.read_bytes()) for file in sorted(tmp_path.iterdir()))
    assert seed.units == delta.units
    assert any("o" in unit.tensors for unit in seed.units)
    (frame,) = delta.frames
    info = inspect_frame(frame, delta.units)
    assert [s.changes for s in info.sections if s.mode == "changes"] == [1]
    assert "o" in next(s for s in info.sections if s.mode == "changes").tensors
