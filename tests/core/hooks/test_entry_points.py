"""Plugins that distributions announce in the entry point group ``slipstream``."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from slipstream.core.hooks import PluginConflictError, PluginLoadError, SlipstreamPlugins

CODEC = """
    from slipstream.core.hooks import Codec, hookimpl

    @hookimpl
    def slipstream_codecs():
        yield Codec("toy", 7, object, bytes)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch):
    """Put a distribution with one plugin on the import path, the way pip leaves it."""
    monkeypatch.setenv("SLIPSTREAM_DISABLE_PLUGINS", "vllm,verl")

    def install(distribution: str, plugin: str, source: str) -> None:
        folder = tmp_path / distribution
        module = f"{distribution}_plugin"
        info = folder / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{module}.py").write_text(textwrap.dedent(source))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[slipstream]\n{plugin} = {module}\n")
        monkeypatch.syspath_prepend(folder)

    return install


def test_an_installed_plugin_is_registered_under_its_entry_point_name(install):
    install("toydist", "toy", CODEC)
    plugins = SlipstreamPlugins.installed()
    assert plugins.distributions()["toy"] == "toydist 1.0"
    assert plugins.codec("toy").level == 7


def test_a_plugin_that_cannot_be_imported_is_named_with_its_distribution_and_the_cause(install):
    install("brokendist", "broken", "import slipstream_needs_this\n")
    with pytest.raises(PluginLoadError) as raised:
        SlipstreamPlugins.installed()
    for part in ("plugin 'broken' of brokendist 1.0", "ModuleNotFoundError", "slipstream_needs_this"):
        assert part in str(raised.value)
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)


def test_a_disabled_plugin_is_not_imported(install, monkeypatch):
    install("badlydist", "bad", "raise RuntimeError\n")
    monkeypatch.setenv("SLIPSTREAM_DISABLE_PLUGINS", "vllm, verl , bad,")
    assert "bad" not in SlipstreamPlugins.installed().distributions()


def test_one_plugin_name_in_two_distributions_names_both(install):
    install("firstdist", "toy", CODEC)
    install("seconddist", "toy", CODEC)
    with pytest.raises(
        PluginConflictError, match=r"called 'toy': one of (first|second)dist 1\.0, one of (first|second)"
    ):
        SlipstreamPlugins.installed()


def test_the_records_of_two_distributions_conflict_by_name(install):
    install("onedist", "one", CODEC)
    install("twodist", "two", CODEC)
    with pytest.raises(PluginConflictError, match=r"plugin 'one' of onedist 1\.0 and plugin 'two' of twodist 1\.0"):
        SlipstreamPlugins.installed().codecs()
