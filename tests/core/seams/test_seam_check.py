"""The check of a seam table against code that is really installed."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pluggy
import pytest

from slipstream.core.seams import Seam, SeamError, SeamStatus, SeamTable, check, installed_version, require


def table(*seams: Seam, versions: str = ">=1", distribution: str | tuple[str, ...] = "pluggy") -> SeamTable:
    return SeamTable("toy", distribution, versions, ("1.5.0",), seams)


@pytest.mark.parametrize(
    ("target", "signature", "status", "found"),
    [
        ("pluggy:PluginManager.register", "(plugin, name)", SeamStatus.OK, "(plugin, name)"),
        ("pluggy:PluginManager.register", "(self, plugin, name)", SeamStatus.OK, "(plugin, name)"),
        ("pluggy:PluginManager.register", "(plugin, ...)", SeamStatus.OK, "(plugin, name)"),
        ("pluggy:PluginManager.register", None, SeamStatus.OK, "present"),
        ("pluggy:PluginManager.register", "(name, plugin)", SeamStatus.SIGNATURE_CHANGED, "(plugin, name)"),
        ("pluggy:PluginManager.register", "(plugin)", SeamStatus.SIGNATURE_CHANGED, "(plugin, name)"),
        ("pluggy:PluginManager.register", "(plugin, name, x, ...)", SeamStatus.SIGNATURE_CHANGED, "(plugin, name)"),
        ("pluggy:PluginManager.check_pending", "()", SeamStatus.OK, "()"),
        ("pluggy:HookCaller.__call__", "(**kwargs)", SeamStatus.OK, "(**kwargs)"),
        ("pluggy:__version__", "(x)", SeamStatus.SIGNATURE_CHANGED, "no signature"),
        ("pluggy:PluginManager.nope", "()", SeamStatus.MISSING, "pluggy.PluginManager has no attribute 'nope'"),
        ("pluggy:Nope.nope", None, SeamStatus.MISSING, "pluggy has no attribute 'Nope'"),
        ("pluggy.nope:x", None, SeamStatus.MISSING, "import of pluggy.nope failed"),
    ],
)
def test_a_seam_is_compared_with_the_installed_attribute(target, signature, status, found):
    version, result = check(table(Seam(target, "weight_sync", signature, "wraps it")))
    assert version.status is SeamStatus.OK
    assert (result.status, result.target, result.feature, result.note) == (status, target, "weight_sync", "wraps it")
    assert found in result.found
    assert result.broken == (status is not SeamStatus.OK)


def test_a_module_that_raises_at_import_is_a_missing_seam_with_the_cause(tmp_path: Path, monkeypatch):
    (tmp_path / "broken_at_import.py").write_text("raise RuntimeError('no driver')\n")
    monkeypatch.syspath_prepend(tmp_path)
    _, result = check(table(Seam("broken_at_import:x", "weight_sync")))
    assert result.status is SeamStatus.MISSING
    assert "RuntimeError: no driver" in result.found


def test_only_the_modules_of_the_asked_features_are_imported(tmp_path: Path, monkeypatch):
    (tmp_path / "seam_of_another_feature.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seams = (Seam("seam_of_another_feature:x", "drafter"), Seam("pluggy:PluginManager", "weight_sync"))
    results = check(table(*seams), ["weight_sync"])
    assert [result.target for result in results] == ["pluggy", "pluggy:PluginManager"]
    assert "seam_of_another_feature" not in sys.modules


@pytest.mark.parametrize(
    ("versions", "distribution", "status", "broken"),
    [
        (">=1,<2", "pluggy", SeamStatus.OK, False),
        (">=99", "pluggy", SeamStatus.UNTESTED_VERSION, False),
        (">=1", ("slipstream-absent", "pluggy"), SeamStatus.OK, False),
        (">=1", ("slipstream-absent", "slipstream-gone"), SeamStatus.NOT_INSTALLED, True),
    ],
)
def test_the_first_row_is_about_the_version(versions, distribution, status, broken):
    first = check(table(Seam("pluggy:x", "f"), versions=versions, distribution=distribution))[0]
    assert (first.status, first.broken) == (status, broken)
    assert first.expected == f"{versions} (run against 1.5.0)"


def test_a_distribution_that_is_absent_has_only_the_version_row():
    assert len(check(table(Seam("pluggy:PluginManager", "f"), distribution="slipstream-absent"))) == 1


def test_require_names_the_seam_both_signatures_the_version_and_the_way_out():
    broken = Seam("pluggy:PluginManager.register", "weight_sync", "(name, loader)")
    with pytest.raises(SeamError) as raised:
        require(table(broken), ["weight_sync"])
    for part in (
        "plugin 'toy'",
        f"pluggy {pluggy.__version__}",
        "pluggy:PluginManager.register [weight_sync]: signature changed",
        "expected (name, loader)",
        "found    (plugin, name)",
        "Install pluggy >=1",
        "slipstream/weight_sync=native",
    ):
        assert part in str(raised.value)


def test_require_offers_the_option_that_the_table_states():
    seams = (Seam("pluggy:nope", "drafter"),)
    stated = SeamTable("toy", "pluggy", ">=1", (), seams, switch_off={"drafter": "slipstream/drafter=off"})
    with pytest.raises(SeamError, match="slipstream/drafter=off"):
        require(stated, ["drafter"])


def test_require_raises_when_the_distribution_is_absent():
    with pytest.raises(SeamError, match="not installed") as raised:
        require(table(distribution="slipstream-absent"), ["weight_sync"])
    assert "slipstream/weight_sync=native" in str(raised.value)


def test_require_ignores_seams_of_features_that_are_off():
    require(table(Seam("pluggy:nope", "drafter")), ["weight_sync"])


def test_require_only_warns_about_an_untested_version(caplog):
    results = require(table(Seam("pluggy:PluginManager", "f"), versions=">=99"), ["f"])
    assert [result.status for result in results] == [SeamStatus.UNTESTED_VERSION, SeamStatus.OK]
    assert "is written for pluggy >=99" in caplog.text


@pytest.mark.parametrize("target", ["pluggy", "pluggy:", ":x"])
def test_a_target_without_module_and_attribute_is_refused(target):
    with pytest.raises(ValueError, match=r"expected 'module:attribute\.path'"):
        Seam(target, "f")


def test_the_first_installed_name_decides_the_version():
    assert installed_version(("slipstream-absent", "pluggy")) == pluggy.__version__
    assert installed_version("slipstream-absent") is None


def test_a_class_that_was_made_a_ray_actor_keeps_its_signatures(tmp_path: Path, monkeypatch):
    """`ray.remote` adds a tracing parameter to the methods of the class it is given, also to inherited ones."""
    ray = pytest.importorskip("ray", reason="needs ray, which the verl extra brings")
    (tmp_path / "actors_for_seams.py").write_text("class Server:\n    def call(self, method):\n        return method\n")
    monkeypatch.syspath_prepend(tmp_path)
    import actors_for_seams

    ray.remote(type("Ours", (actors_for_seams.Server,), {}))
    assert "_ray_trace_ctx" in inspect.signature(actors_for_seams.Server.call).parameters
    table = SeamTable("toy", "pytest", ">=1", (), (Seam("actors_for_seams:Server.call", "x", "(method)"),))
    assert [result.status for result in check(table)][1] is SeamStatus.OK
