"""The ``slipstream`` command as users run it: in its own process, with toy adapters installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import typer

from slipstream.core.cli.app import app

TOY = """
    from slipstream.core.config import ConfigError
    from slipstream.core.hooks import Engine, Framework, hookimpl
    from slipstream.core.seams import Seam, SeamTable

    def seams(signature="(plugin, name)"):
        seam = Seam("pluggy:PluginManager.register", "weight_sync", signature, "registers [plugins]")
        return SeamTable("toy", "pluggy", ">=1", ("1.5.0",), (seam,))

    def demo(model=None, arguments=()):
        print("demo", model, arguments)
        return 3

    def check(config, slipstream):
        if config.folder == "refused":
            raise ConfigError(f"the run would refuse {slipstream.weight_sync.mode}")

    @hookimpl
    def slipstream_frameworks():
        yield Framework("toy", "pluggy", seams, demo, "toyframework.conf:trainer", check)
        yield Framework("absent", "slipstream-absent", seams)

    @hookimpl
    def slipstream_engines():
        yield Engine("toy", ("slipstream-absent", "pluggy"), lambda: seams(SIGNATURE))
"""
VERL = """
    from slipstream.core.hooks import Framework, hookimpl

    @hookimpl
    def slipstream_frameworks():
        yield Framework("toy", "verl", None, None, "verl.trainer.config:ppo_trainer")
"""


@pytest.fixture
def slipstream(tmp_path: Path):
    """Run the command and return its exit status, output and errors; `plugin` is the source of an installed plugin."""

    def slipstream(*arguments: str, plugin: str = "", environment: dict[str, str] | None = None):
        if plugin:
            info = tmp_path / "toydist-1.0.dist-info"
            info.mkdir(exist_ok=True)
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toydist\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text("[slipstream]\ntoy = toydist_plugin\n")
            (tmp_path / "toydist_plugin.py").write_text(textwrap.dedent(plugin))
        ours = "openrlhf,sglang,verl,vllm"
        settings = {"PYTHONPATH": str(tmp_path), "SLIPSTREAM_DISABLE_PLUGINS": ours, "COLUMNS": "200"}
        done = subprocess.run(
            [sys.executable, "-m", "slipstream.core.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env={**os.environ, **settings, **(environment or {})},
        )
        return done.returncode, done.stdout, done.stderr

    return slipstream


@pytest.fixture
def framework_config(tmp_path: Path) -> None:
    """A framework with a Hydra config of its own, which cannot be imported."""
    folder = tmp_path / "toyframework" / "conf"
    folder.mkdir(parents=True)
    (tmp_path / "toyframework" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    rollout = "actor_rollout_ref: {rollout: {checkpoint_engine: {backend: naive}}}\n"
    (folder / "trainer.yaml").write_text(f"{rollout}folder: runs\n")
    (folder / "other.yaml").write_text(f"{rollout}folder: others\n")


def toy(signature: str = "(plugin, name)") -> str:
    return TOY.replace("SIGNATURE", repr(signature))


def test_version(slipstream):
    status, output, _ = slipstream("--version")
    assert status == 0
    assert output.startswith("slipstream ")


@pytest.mark.parametrize(
    ("overrides", "mode"),
    [
        ([], "native"),
        (["+slipstream=sync"], "delta"),
        (["+slipstream=sync", "slipstream/weight_sync=dense"], "dense"),
    ],
)
def test_config_prints_the_resolved_node_without_a_framework(slipstream, overrides, mode):
    status, output, errors = slipstream("config", *overrides, "--json")
    assert status == 0
    assert json.loads(output)["slipstream"]["weight_sync"]["mode"] == mode
    assert ("add +slipstream=sync" in errors) == (not overrides)


@pytest.mark.usefixtures("framework_config")
@pytest.mark.parametrize(("options", "folder"), [([], "runs"), (["--config-name", "other"], "others")])
def test_config_composes_the_installed_frameworks_config_without_importing_it(slipstream, options, folder):
    overrides = ["+slipstream=sync", "slipstream.events=${folder}/log"]
    status, output, _ = slipstream("config", *overrides, *options, plugin=toy())
    assert status == 0
    assert f"  events: {folder}/log" in output


@pytest.mark.usefixtures("framework_config")
def test_config_refuses_what_the_frameworks_run_would_refuse(slipstream):
    status, output, errors = slipstream("config", "+slipstream=sync", "folder=refused", plugin=toy())
    assert (status, output) == (1, "")
    assert "error: the run would refuse delta\n" in errors


def test_config_says_when_slipstream_is_off_though_its_node_is_there(slipstream):
    status, output, errors = slipstream("config", "+slipstream=sync", "slipstream/weight_sync=native")
    assert (status, "mode: native" in output) == (0, True)
    assert "# slipstream is off: weight_sync.mode is native" in errors


def test_a_setting_alone_is_answered_with_the_override_that_adds_it(slipstream):
    """Hydra's own advice, a plus before the setting, would leave slipstream off."""
    status, _, errors = slipstream("config", "slipstream.weight_sync.audit_every=10")
    assert status == 1
    assert "slipstream.weight_sync.audit_every=10: expected +slipstream=sync beside it" in errors
    assert "+slipstream.weight_sync" not in errors


@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed")
def test_config_composes_verls_own_trainer_config(slipstream):
    status, output, errors = slipstream(
        "config", "+slipstream=sync", "slipstream.events=${trainer.project_name}.log", plugin=VERL
    )
    assert (status, "  events: verl_examples.log" in output) == (0, True), errors
    assert "verl.trainer.config:ppo_trainer" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["config", "+slipstream=sync", "+slipstream.weight_sync.mod=delta"], "did you mean 'mode'?"),
        (["config", "+slipstream.weight_sync.mode=fast"], "expected one of delta, dense, native"),
        (["config", "+slipstream=nope"], "Could not find 'slipstream/nope'"),
        (["config", "--framework", "tow"], "unknown framework 'tow'; did you mean 'toy'?"),
        (["config", "--framework", "absent"], "expected a framework with a Hydra config"),
        (["demo", "--framework", "absent"], "framework 'absent' has no demo; frameworks with a demo: toy"),
    ],
)
@pytest.mark.usefixtures("framework_config")
def test_an_error_is_one_message_without_a_traceback(slipstream, arguments, message):
    status, _, errors = slipstream(*arguments, plugin=toy())
    assert status == 1
    assert "error: " in errors
    assert message in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("arguments", [["--debug", "demo"], ["demo", "--debug"], ["demo", "x=1", "--debug"]])
def test_debug_shows_the_traceback_before_and_after_the_command(slipstream, arguments):
    status, _, errors = slipstream(*arguments)
    assert status == 1
    assert "Traceback" in errors
    assert "no installed slipstream plugin has a demo" in errors


def test_demo_passes_model_and_other_arguments_on_and_returns_its_status(slipstream):
    status, output, _ = slipstream("demo", "--model", "tiny", "--steps", "3", "x=1", plugin=toy())
    assert (status, output) == (3, "demo tiny ['--steps', '3', 'x=1']\n")


def test_demo_says_what_its_arguments_are(slipstream):
    status, output, _ = slipstream("demo", "--help")
    assert status == 0
    assert "for verl Hydra overrides, for example trainer.total_training_steps=4" in " ".join(output.split())


def test_doctor_is_content_when_every_seam_fits(slipstream):
    status, output, _ = slipstream("doctor", "--plain", plugin=toy())
    assert status == 0
    for part in (
        "ok: Hydra discovers slipstream's config groups",
        "framework absent: not installed",
        "ok: pluggy:PluginManager.register [weight_sync]",
        "everything that is installed fits",
    ):
        assert part in output


def test_doctor_fails_and_shows_expected_and_found_when_a_seam_is_broken(slipstream):
    status, output, _ = slipstream("doctor", "--plain", plugin=toy("(name, loader)"))
    assert status == 1
    assert "signature changed: pluggy:PluginManager.register [weight_sync]" in output
    assert "expected (name, loader); found (plugin, name)" in output
    remedy = "toy: Install pluggy >=1, or switch the feature off with slipstream/weight_sync=native"
    assert output.splitlines()[-2:] == ["broken: see above", remedy]


def test_doctor_in_colour_shows_the_same_rows(slipstream):
    status, output, _ = slipstream("doctor", plugin=toy("(name, loader)"), environment={"FORCE_COLOR": "1"})
    assert status == 1
    assert "\x1b[1;31msignature changed" in output
    assert "\x1b[32mok" in output


@pytest.mark.parametrize(
    ("columns", "colour"), [("80", {}), ("80", {"FORCE_COLOR": "1"}), ("200", {}), ("200", {"FORCE_COLOR": "1"})]
)
def test_doctor_never_cuts_a_name(slipstream, columns, colour):
    long = TOY.replace("pluggy:PluginManager.register", f"pluggy:{'a' * 60}.register").replace("SIGNATURE", "'()'")
    status, output, _ = slipstream("doctor", plugin=long, environment={"COLUMNS": columns, **colour})
    assert status == 1
    assert f"pluggy:{'a' * 60}.register" in output
    assert ("┃" in output) == (columns == "200" and bool(colour)), "a table only where it fits and is looked at"


def test_doctor_hushes_what_packages_print_at_import_unless_something_is_broken(slipstream, tmp_path: Path):
    (tmp_path / "chatty.py").write_text("import os, sys; print('hi'); os.system('echo there >&2'); x = 1\n")
    chatty = toy().replace("pluggy:PluginManager.register", "chatty:x").replace('"(plugin, name)"', "None")
    chatty = chatty.replace("seams('(plugin, name)')", "seams()")
    assert slipstream("doctor", plugin=chatty)[::2] == (0, "")
    status, output, errors = slipstream("doctor", "--json", plugin=chatty.replace("chatty:x", "chatty:y"))
    assert status == 1
    assert json.loads(output)["healthy"] is False
    assert errors == "# printed by the packages while they were imported:\n# | hi\n# | there\n\n"


def test_doctor_as_json_has_every_row(slipstream):
    status, output, _ = slipstream("doctor", "--json", plugin=toy("(name, loader)"))
    report = json.loads(output)
    assert (status, report["healthy"], report["hydra_problem"]) == (1, False, None)
    adapters = [(adapter["kind"], adapter["name"], len(adapter["results"])) for adapter in report["adapters"]]
    assert adapters == [("framework", "toy", 2), ("framework", "absent", 0), ("engine", "toy", 2)]
    assert report["adapters"][2]["results"][1]["status"] == "signature changed"
    assert report["adapters"][0]["remedy"] is None
    assert "slipstream/weight_sync=native" in report["adapters"][2]["remedy"]


def test_doctor_without_adapters_says_so(slipstream):
    status, output, _ = slipstream("doctor", "--plain")
    assert status == 0
    assert "no framework or engine plugin is registered" in output


def test_an_environment_where_hydra_does_not_discover_the_groups_is_not_healthy(slipstream, tmp_path: Path):
    """A regular ``hydra_plugins`` package in front hides the namespace package, as an import hook does."""
    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins" / "__init__.py").touch()
    status, output, _ = slipstream("doctor", "--plain")
    assert status == 1
    assert "got the plain string 'sync'" in output
    status, _, errors = slipstream("config", "+slipstream=sync")
    assert status == 1
    assert "did not discover" in errors


def test_starting_the_command_imports_neither_torch_nor_hydra():
    code = (
        "import sys, slipstream.core.cli; print(sorted({'torch', 'hydra', 'ray', 'verl', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_every_command_has_examples_that_its_own_options_take(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    for name in ("docs/example-workload.yaml", "frames.slipstream"):
        (tmp_path / name).touch()
    for name, command in typer.main.get_command(app).commands.items():
        examples = [line.split() for line in (command.epilog or "").split("\n\n")[1:]]
        assert examples, f"{name} has no example"
        for program, used, *arguments in examples:
            assert (program, used) == ("slipstream", name)
            command.make_context(name, arguments)  # raises for an option or a value that it does not take


def test_the_help_of_a_command_ends_with_examples_on_lines_of_their_own(slipstream):
    status, output, _ = slipstream("report", "--help")
    assert status == 0
    lines = [line.strip() for line in output.splitlines()]
    assert "slipstream report outputs/2026-01-31/09-30-00" in lines


def test_the_shell_completes_commands(slipstream):
    variables = {"_SLIPSTREAM_COMPLETE": "complete_bash", "COMP_WORDS": "slipstream re", "COMP_CWORD": "1"}
    _, output, _ = slipstream(environment=variables)
    assert output.split() == ["replay", "report"]
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # by whom the tests were started does not matter
    status, output, _ = slipstream("--show-completion", "bash", environment=named)
    assert (status, "_slipstream_completion" in output) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["report", "nowhere"], 1, "error: nowhere: expected an event log or a folder with one"),
        (["report"], 2, "Missing argument"),
        (["plan", "nowhere"], 2, "does not exist"),
        (["reprot"], 2, "No such command"),
    ],
)
def test_the_exit_status_tells_wrong_usage_from_an_error(slipstream, arguments, status, message):
    found, _, errors = slipstream(*arguments)
    assert found == status
    assert message in errors
    assert "Traceback" not in errors
