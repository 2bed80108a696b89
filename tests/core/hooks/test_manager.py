"""Registration of plugins, look-up of their records and the wording of what goes wrong."""

from __future__ import annotations

import types

import pytest

from slipstream.core.hooks import (
    Codec,
    Drafter,
    PluginConflictError,
    PluginLoadError,
    SlipstreamPlugins,
    UnknownRecordError,
    hookimpl,
)


class CodecPlugin:
    """Provides one codec per name."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.asked = 0

    @hookimpl
    def slipstream_codecs(self):
        self.asked += 1
        return [Codec(name, level, object, bytes) for level, name in enumerate(self.names)]


def registered(**named: object) -> SlipstreamPlugins:
    plugins = SlipstreamPlugins()
    for name, plugin in named.items():
        plugins.register(plugin, name, f"{name}-dist 1.0")
    return plugins


def test_records_of_all_plugins_are_found_by_name():
    plugins = registered(one=CodecPlugin("a", "b"), two=CodecPlugin("c"))
    assert set(plugins.codecs()) == {"a", "b", "c"}
    assert plugins.codec("b").level == 1
    assert dict(plugins.distributions()) == {"one": "one-dist 1.0", "two": "two-dist 1.0"}


def test_providers_are_asked_once_and_again_after_a_registration():
    plugin = CodecPlugin("a")
    plugins = registered(one=plugin)
    plugins.codecs()
    plugins.codec("a")
    assert plugin.asked == 1
    plugins.register(CodecPlugin("b"), "two")
    assert set(plugins.codecs()) == {"a", "b"}


@pytest.mark.parametrize(
    "noun", ["codec", "transport", "drafter", "routing_policy", "scheduler", "engine", "framework"]
)
def test_an_unknown_name_of_any_kind_is_an_error(noun):
    with pytest.raises(UnknownRecordError, match=rf"unknown {noun.replace('_', ' ')} 'x' \(known: none\)"):
        getattr(SlipstreamPlugins(), noun)("x")


def test_an_unknown_name_lists_the_known_ones_and_the_closest():
    plugins = registered(one=CodecPlugin("elias_fano", "classes"))
    with pytest.raises(UnknownRecordError, match=r"'elias_fan'; did you mean 'elias_fano'\? \(known: classes, elias_f"):
        plugins.codec("elias_fan")


def test_two_records_of_one_name_name_both_plugins_and_distributions():
    plugins = registered(one=CodecPlugin("a"), two=CodecPlugin("a"))
    with pytest.raises(PluginConflictError) as raised:
        plugins.codecs()
    for part in ("Codec called 'a'", "plugin 'one' of one-dist 1.0", "plugin 'two' of two-dist 1.0", "DISABLE_PLUGINS"):
        assert part in str(raised.value)


def test_two_plugins_of_one_name_name_both_distributions():
    plugins = registered(one=CodecPlugin("a"))
    with pytest.raises(PluginConflictError, match=r"called 'one': one of one-dist 1\.0, one of other 2\.0"):
        plugins.register(CodecPlugin("b"), "one", "other 2.0")


class MisspeltHook:
    @hookimpl
    def slipstream_codec(self):
        return ()


class UnknownArgument:
    @hookimpl
    def slipstream_weights_changed(self, versions):
        pass


@pytest.mark.parametrize(
    ("plugin", "cause"), [(MisspeltHook(), "unknown hook 'slipstream_codec'"), (UnknownArgument(), "'versions'")]
)
def test_a_plugin_that_does_not_follow_the_specifications_is_refused_by_name(plugin, cause):
    plugins = SlipstreamPlugins()
    with pytest.raises(PluginLoadError) as raised:
        plugins.register(plugin, "bad", "bad-dist 1.0")
    for part in ("plugin 'bad' of bad-dist 1.0", cause, "SLIPSTREAM_DISABLE_PLUGINS=bad"):
        assert part in str(raised.value)
    plugins.register(CodecPlugin("a"), "good")
    assert set(plugins.codecs()) == {"a"}


class ReturnsStrings:
    @hookimpl
    def slipstream_codecs(self):
        return ["a"]


class ReturnsOtherRecords:
    @hookimpl
    def slipstream_codecs(self):
        return [Drafter("a", object)]


class Raises:
    @hookimpl
    def slipstream_codecs(self):
        yield Codec("a", 0, object, bytes)
        raise OSError("no such library")


class Wraps:
    @hookimpl(wrapper=True)
    def slipstream_codecs(self):
        return (yield)


@pytest.mark.parametrize(
    ("plugin", "cause"),
    [
        (ReturnsStrings(), "expected Codec records, got 'a'"),
        (ReturnsOtherRecords(), "expected Codec records, got Drafter"),
        (Raises(), "slipstream_codecs raised OSError: no such library"),
        (Wraps(), "slipstream_codecs cannot be wrapped"),
    ],
)
def test_a_provider_that_returns_something_else_is_refused_by_name(plugin, cause):
    with pytest.raises(PluginLoadError, match=r"plugin 'bad' of bad-dist 1\.0") as raised:
        registered(bad=plugin).codecs()
    assert cause in str(raised.value)


def test_a_provider_may_return_nothing():
    module = types.ModuleType("nothing")
    module.slipstream_codecs = hookimpl(lambda: None, specname="slipstream_codecs")
    assert not registered(nothing=module).codecs()


def test_an_event_reaches_every_plugin_and_its_error_reaches_the_run():
    class Observer:
        def __init__(self):
            self.versions = []

        @hookimpl
        def slipstream_weights_changed(self, version):
            self.versions.append(version)
            if version == 2:
                raise RuntimeError("stale cache")

    first, second = Observer(), Observer()
    plugins = registered(first=first, second=second)
    plugins.hook.slipstream_weights_changed(version=1)
    assert first.versions == second.versions == [1]
    with pytest.raises(RuntimeError, match="stale cache"):
        plugins.hook.slipstream_weights_changed(version=2)
