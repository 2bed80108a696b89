"""``slipstream replay`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pytest

from slipstream.core.cli import main

FEW = ["--groups", "4", "--replicas", "2", "--policy", "cache_aware", "--policy", "verl", "--json"]


def run(capsys, *arguments: str) -> dict:
    with pytest.raises(SystemExit) as left:
        main(["replay", *arguments])
    captured = capsys.readouterr()
    assert left.value.code == 0, captured.err
    return json.loads(captured.out)


def write(path: Path, lines: list[str]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.CompressedOutputStream(str(path), "zstd") as stream:
        stream.write("\n".join(lines).encode())
    return str(path)


def test_generated_lengths_are_played_under_each_policy(capsys):
    found = run(capsys, *FEW)
    assert list(found["policies"]) == ["cache_aware", "verl"]
    assert found["trajectories"] == 32
    for row in found["policies"].values():
        assert row["seconds"] >= found["lower_bound_seconds"]


def test_a_recorded_set_is_played(capsys, tmp_path):
    segments = [{"role": "system", "ids": [1] * 40}, {"role": "user", "ids": [2] * 10}]
    segments += [{"role": "assistant", "ids": [3] * 20}, {"role": "tool", "ids": [4] * 5}]
    segments += [{"role": "assistant", "ids": [3] * 30}, {"role": "user", "ids": [4] * 5}]
    file = write(tmp_path / "set.jsonl.zst", [json.dumps({"task": "t", "attempt": 0, "segments": segments})])
    found = run(capsys, "--data", file, *FEW)
    assert found["workload"] == "set.jsonl.zst"
    assert found["trajectories"] == 32


def test_traces_are_played_at_their_times(capsys, tmp_path):
    azure = write(tmp_path / "a.csv.zst", ["t_ms,ctx,gen", "0,100,10", "5000,200,20"])
    found = run(capsys, "--data", azure, *FEW)
    assert found["trajectories"] == 2
    assert found["policies"]["verl"]["seconds"] > 5
    row = {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}
    mooncake = write(tmp_path / "traces" / "m.jsonl.zst", [json.dumps(row), json.dumps({**row, "timestamp": 9000})])
    found = run(capsys, "--data", mooncake, "--stretch", "0.5", *FEW)
    assert 4.5 < found["policies"]["verl"]["seconds"] < 9
    assert found["policies"]["cache_aware"]["hit_percent"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "nope"], "known: cache_aware, round_robin, verl"),
        (["--workload", "nope"], "known: multi_turn"),
        (["--data", "/nowhere"], "leave it out to generate lengths"),
    ],
)
def test_mistakes_are_named(capsys, arguments, message):
    with pytest.raises(SystemExit) as left:
        main(["replay", "--groups", "1", *arguments])
    assert left.value.code == 1
    assert message in capsys.readouterr().err
