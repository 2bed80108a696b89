"""The demo around its runs: what it refuses at once, where it works, and what it says about the figures."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import run_logs

from slipstream.plugins.verl.demo import run
from slipstream.plugins.verl.demo.arguments import ArgumentError, check_overrides, model_folder_of, split
from slipstream.plugins.verl.demo.folders import FolderInUseError, default_cache, exclusive
from slipstream.plugins.verl.demo.report import Syncs, conditions, speed, verdict
from slipstream.plugins.verl.demo.runner import RunResult, StepMetrics

ROOT = Path(__file__).resolve().parents[3]


def model(folder: Path, *names: str, template: bool = True) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    if template:
        (folder / "chat_template.jinja").touch()
    return folder


def test_a_folder_with_a_model_is_taken(tmp_path: Path) -> None:
    folder = model(tmp_path / "model", "config.json", "model-00001-of-00002.safetensors", "tokenizer.json")
    assert model_folder_of(str(folder)) == folder


def test_a_model_that_is_no_folder_is_refused_in_one_line() -> None:
    with pytest.raises(ArgumentError) as raised:
        model_folder_of("smollm")
    assert str(raised.value) == "smollm: no such folder; MODEL is smollm2 or a folder with config.json"


@pytest.mark.parametrize(
    ("names", "template", "message"),
    [
        ((), False, "without config.json and without weights"),
        (("config.json", "tokenizer.json"), True, r"without weights \(\*\.safetensors or \*\.bin\); MODEL is"),
        (("config.json", "model.safetensors"), True, "without a tokenizer"),
        (("config.json", "model.safetensors", "tokenizer.json"), False, "with a chat template, found none"),
    ],
)
def test_a_folder_that_lacks_something_is_refused(
    tmp_path: Path, names: tuple[str, ...], template: bool, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        model_folder_of(str(model(tmp_path / "model", *names, template=template)))


def test_overrides_of_slipstream_go_to_its_run_only() -> None:
    both, ours = split(["trainer.total_training_steps=4", "+a.b=1", "slipstream/weight_sync=dense", "~c"])
    assert both == ["trainer.total_training_steps=4", "+a.b=1", "~c"]
    assert ours == ["slipstream/weight_sync=dense"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--nonsense", "expected a Hydra override such as trainer.total_training_steps=4, got '--nonsense'"),
        ("--steps=abc", "got '--steps=abc'"),
        ("steps", "got 'steps'"),
        ("+slipstream=sync", "the demo sets slipstream itself"),
        ("slipstream.events=x", "the demo sets slipstream.events itself"),
    ],
)
def test_what_is_no_override_is_refused(argument: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message.replace("+", r"\+")):
        split([argument])


@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed")
@pytest.mark.parametrize(
    ("both", "expected"),
    [
        ([], 10),
        (["trainer.total_training_steps=3", "hydra.verbose=true"], 3),
        (["trainer.stepz=3"], "Could not override 'trainer.stepz'"),
        (["trainer.total_training_steps=many"], "expected a whole number from 1, got 'many'"),
        (["actor_rollout_ref.rollout.name=trtllm"], "needs actor_rollout_ref.rollout.name=vllm"),
    ],
)
def test_overrides_are_composed_with_verls_config_before_a_run(both: list[str], expected: int | str) -> None:
    if isinstance(expected, int):
        assert check_overrides(both, ["+slipstream=sync"], 10) == expected
    else:
        with pytest.raises(ArgumentError, match=expected):
            check_overrides(both, ["+slipstream=sync"], 10)


@pytest.mark.parametrize(
    "variables", [{}, {"XDG_CACHE_HOME": "/x"}, {"SLIPSTREAM_CACHE": "~/y", "XDG_CACHE_HOME": "/x"}]
)
def test_the_cache_is_where_make_env_has_it(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "env" / "bootstrap.py")
    bootstrap = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    for name in ("XDG_CACHE_HOME", "SLIPSTREAM_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    expected = Path.home() / "y" if "SLIPSTREAM_CACHE" in variables else Path("/x/slipstream")
    assert default_cache() == bootstrap.cache_root() == (expected if variables else Path.home() / ".cache/slipstream")


def test_a_folder_belongs_to_one_demo_at_a_time(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from slipstream.plugins.verl.demo.folders import exclusive\n"
    code += "with exclusive(Path(sys.argv[1])): print('has it', flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "has it\n"
    with (
        pytest.raises(FolderInUseError, match=rf"another demo at work there \(process {other.pid}\)"),
        exclusive(tmp_path),
    ):
        pass
    other.kill()
    other.communicate()
    with exclusive(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize(
    ("native", "ours", "expected"),
    [
        ([0.03, 0.05, 0.04], [0.02, 0.02, 0.02], "fixed costs"),
        ([1.04, 1.0, 1.1, 1.02], [0.33, 0.31, 0.9, 0.34], "3.1x faster"),
        ([0.5, 0.5, 0.5], [0.6, 0.6, 0.6], "1.2x slower"),
        ([0.3, 0.5, 0.4], [0.33, 0.34, 0.35], "fixed costs, within the spread of the steps"),
        ([0.9], [0.3], "too few steps to tell"),
    ],
)
def test_a_ratio_is_given_where_the_steps_allow_it(native: list[float], ours: list[float], expected: str) -> None:
    assert speed(native, ours) == expected


def test_the_conditions_name_what_the_figures_leave_out() -> None:
    text = "\n".join(conditions("smollm2"))
    for part in ("without the audit", "computed, not measured", "slipstream.plugins.verl.cpu", "Q4_1", "2 % noise"):
        assert part in text
    assert "Q4_1" not in "\n".join(conditions(None))


def test_the_readme_promises_the_times_of_the_banner() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    for text in run.DURATIONS.values():
        assert text.split(" on ")[0] in readme


def finished(folder: Path, responses: list[str]) -> RunResult:
    """A run of one step with these responses."""
    folder.mkdir()
    lines = [
        json.dumps({"step": 1, "input": f"p{i}", "output": text, "gts": "", "score": 0})
        for i, text in enumerate(responses)
    ]
    (folder / "1.jsonl").write_text("\n".join(lines) + "\n")
    return RunResult([StepMetrics(1, {})], 1.0, 1.0, folder / "log", folder)


@pytest.mark.parametrize(
    ("audited", "responses", "line", "well"),
    [
        ([7, 7], ["a", "b"], "identical: 2 of 2 syncs", True),
        ([7, 0], ["a", "b"], "identical: 1 of 2 syncs", False),
        ([7], ["a", "b"], "identical: 1 of 2 syncs", False),
        ([7, 7, 7], ["a", "b"], "identical: 3 of 2 syncs", False),
        ([7, 7], ["a", "c"], "identical: 2 of 2 syncs; 1 of 2 responses differ", False),
    ],
    ids=["well", "one not audited", "one missing", "one too many", "other responses"],
)
def test_the_demo_fails_when_anything_differs(
    audited: list[int], responses: list[str], line: str, well: bool, tmp_path: Path
) -> None:
    syncs = Syncs([{"audited_tensors": count, "seeded_workers": 0} for count in audited])
    native, ours = finished(tmp_path / "native", ["a", "b"]), finished(tmp_path / "ours", responses)
    assert verdict(native, ours, syncs) == (line, well)


def test_the_demo_ends_with_a_page_of_both_runs(tmp_path: Path) -> None:
    events = run_logs.write_log(tmp_path / "slipstream.jsonl", run_logs.run())
    metrics = tmp_path / "native" / "metrics.jsonl"
    metrics.parent.mkdir()
    metrics.write_text(json.dumps({"step": 1, "data": {"timing_s/step": 22.0, "critic/score/mean": 0.2}}) + "\n")
    text = run._write_report(tmp_path / "report.html", events, metrics).read_text()
    assert "<th>baseline: native/metrics</th><th>toy/run</th>" in text
    assert "<td>22 s</td><td>11 s  (2.00x)</td>" in text
