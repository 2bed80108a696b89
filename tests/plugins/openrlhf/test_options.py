"""The node as options: what is said is what is set, and what nobody knows is refused."""

from __future__ import annotations

import argparse

import pytest

from slipstream.core.config import ConfigError, SlipstreamConfig, parse_config, to_mapping
from slipstream.plugins.openrlhf.options import add_options, parse_options


def test_options_say_the_same_as_the_node():
    arguments = "--a.b 1 --slipstream.weight_sync delta --slipstream.weight_sync.level 2 --slipstream.drafter off --c"
    arguments += " --slipstream.weight_sync.strict_seams=false --slipstream.weight_sync.timeout_seconds 7"
    config, rest = parse_options([*arguments.split(), "--slipstream.events", "e.jsonl"])
    sync = {"mode": "delta", "level": 2, "strict_seams": False, "timeout_seconds": 7}
    assert config == parse_config({"weight_sync": sync, "drafter": {"mode": "off"}, "events": "e.jsonl"})
    assert rest == ["--a.b", "1", "--c"]


def test_every_setting_is_an_option_and_in_the_help():
    parser = argparse.ArgumentParser()
    add_options(parser)
    text = parser.format_help()
    for part, settings in to_mapping(SlipstreamConfig()).items():
        nested = isinstance(settings, dict)
        names = [f"{part}.{name}" for name in settings if name != "mode"] + [part] if nested else [part]
        for name in names:
            assert f"--slipstream.{name} " in text


def test_a_file_holds_the_node_and_options_win_over_it(tmp_path):
    file = tmp_path / "node.yaml"
    file.write_text("slipstream:\n  weight_sync: {mode: delta, level: 1}\n")
    config, _ = parse_options(["--slipstream.config", str(file), "--slipstream.weight_sync.level", "0"])
    assert (config.weight_sync.mode, config.weight_sync.level) == ("delta", 0)
    file.write_text("weight_sync: {mode: dense}\n")
    assert parse_options(["--slipstream.config", str(file)])[0].weight_sync.mode == "dense"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--slipstream.wait_sync delta", "did you mean 'weight_sync'"),
        ("--slipstream.weight_sync delta --slipstream.weight_sync.levle 1", "did you mean 'level'"),
        ("--slipstream.weight_sync=delt", "did you mean 'delta'"),
        ("--slipstream.weight_sync.level 1", "expected an option that switches something on"),
        ("--actor.adam.lr 1", "expected an option that switches something on"),
        ("--slipstream.config absent.yaml", "expected a YAML file"),
        ("--slipstream.weight_sync", "expected one argument"),
        ("--slipstream delta", "unknown"),
    ],
)
def test_mistakes_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        parse_options(arguments.split())
