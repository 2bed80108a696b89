"""The schema of the ``slipstream`` node and the wording of its errors."""

from __future__ import annotations

import dataclasses

import pytest
from omegaconf import OmegaConf

from slipstream.core.config import (
    SLIPSTREAM_NODE,
    ConfigError,
    SlipstreamConfig,
    WeightSyncConfig,
    from_environment,
    from_json,
    parse_config,
    to_json,
    to_mapping,
    with_absolute_paths,
)


def test_an_empty_node_leaves_the_framework_untouched():
    config = parse_config({})
    assert config == SlipstreamConfig()
    assert config.weight_sync.mode == "native"
    assert config.events == "auto"
    assert with_absolute_paths(config).events is None, "a run without a folder of its own"
    assert with_absolute_paths(config, "/runs/1").events == "/runs/1/slipstream.jsonl"


@pytest.mark.parametrize("wrap", [dict, OmegaConf.create])
def test_a_node_is_read_from_dictionaries_and_omegaconf_alike(wrap):
    config = parse_config(wrap({"weight_sync": {"mode": "delta", "timeout_seconds": 30}, "events": "run.log"}))
    assert config == SlipstreamConfig(WeightSyncConfig(mode="delta", timeout_seconds=30.0), events="run.log")
    assert isinstance(config.weight_sync.timeout_seconds, float)


def test_interpolations_are_resolved_against_the_whole_config():
    root = OmegaConf.create({"folder": "runs", "slipstream": {"events": "${folder}/log"}})
    assert parse_config(root.slipstream).events == "runs/log"


@pytest.mark.parametrize(
    ("node", "parts"),
    [
        (
            {"weight_sync": {"mod": "delta"}},
            ["slipstream.weight_sync.mod: unknown key; did you mean 'mode'? valid keys: mode, level, snapshot"],
        ),
        ({"weight_sink": {}}, ["slipstream.weight_sink: unknown key; did you mean 'weight_sync'?"]),
        ({"zzz": 1}, ["slipstream.zzz: unknown key; valid keys: weight_sync, drafter, router, placement"]),
        ({"drafter": {"kind": "suffix"}}, ["slipstream.drafter.kind: unknown key", "valid keys: mode"]),
        ({"drafter": {"longest_draft": 65}}, ["slipstream.drafter.longest_draft: expected from 0 to 64, got 65"]),
        ({"router": {"kind": "suffix"}}, ["slipstream.router.kind: unknown key", "valid keys: mode"]),
        ({"placement": {"kind": "graph"}}, ["slipstream.placement.kind: unknown key", "valid keys: mode"]),
        (
            {"placement": {"rollout_memory": 1.5}},
            ["slipstream.placement.rollout_memory: expected a share from 0 to 1, got 1.5", "gpu_memory_utilization"],
        ),
        (
            {"weight_sync": {"mode": "dela"}},
            ["slipstream.weight_sync.mode: expected one of delta, dense, native", "'dela'", "did you mean 'delta'?"],
        ),
        ({"weight_sync": {"mode": 1}}, ["slipstream.weight_sync.mode: expected one of", "got 1"]),
        ({"weight_sync": {"snapshot": "disk"}}, ["expected one of host, device", "'disk'"]),
        ({"weight_sync": {"level": 3}}, ["slipstream.weight_sync.level: expected one of auto, 0, 1, 2; got 3"]),
        ({"weight_sync": {"level": True}}, ["level: expected one of auto, 0, 1, 2; got True"]),
        ({"weight_sync": {"level": "0"}}, ["level: expected one of auto, 0, 1, 2; got '0'"]),
        ({"weight_sync": {"level": "atuo"}}, ["got 'atuo'; did you mean 'auto'?"]),
        ({"weight_sync": {"timeout_seconds": 0}}, ["timeout_seconds: expected greater than 0 and", "got 0.0", "300.0"]),
        ({"weight_sync": {"timeout_seconds": 1e7}}, ["timeout_seconds: expected greater than 0 and at most 1e+06"]),
        ({"weight_sync": {"timeout_seconds": "5 s"}}, ["timeout_seconds: expected a number, got '5 s'"]),
        ({"weight_sync": {"timeout_seconds": float("inf")}}, ["timeout_seconds: expected a finite number"]),
        ({"weight_sync": {"chunk_megabytes": 0}}, ["chunk_megabytes: expected greater than 0"]),
        ({"weight_sync": {"chunk_megabytes": 1.5}}, ["chunk_megabytes: expected a whole number, got 1.5 (float)"]),
        ({"weight_sync": {"audit_every": -1}}, ["audit_every: expected at least 0, got -1"]),
        ({"weight_sync": {"strict_seams": "no"}}, ["strict_seams: expected true or false, got 'no'"]),
        ({"weight_sync": None}, ["slipstream.weight_sync: expected a mapping with the keys mode", "got None"]),
        ({"events": 3}, ["slipstream.events: expected a string, got 3"]),
        ([], ["keys weight_sync, drafter, router, placement, prometheus_port, events; got"]),
        (None, ["slipstream: expected a mapping", "got None"]),
    ],
)
def test_an_error_names_the_full_path_what_was_expected_and_what_was_found(node, parts):
    with pytest.raises(ConfigError) as raised:
        parse_config(node)
    for part in parts:
        assert part in str(raised.value)


def test_a_plain_string_is_explained_as_a_plugin_that_hydra_did_not_discover():
    with pytest.raises(ConfigError) as raised:
        parse_config("sync")
    for part in ("plain string 'sync'", "did not discover", "`pip install .`", "editable_mode=strict"):
        assert part in str(raised.value)


def test_a_config_built_in_python_is_validated_as_well():
    with pytest.raises(ConfigError, match=r"slipstream\.weight_sync\.mode: expected one of"):
        WeightSyncConfig(mode="fast")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "config",
    [
        SlipstreamConfig(),
        SlipstreamConfig(
            WeightSyncConfig("dense", 2, "device", "one", "ray", "s3://a/b", 1.5, 1, 10, 4, 0.5, False),
            events="päth with spaces",
        ),
    ],
)
def test_json_carries_the_whole_node(config):
    text = to_json(config)
    assert "\n" not in text
    assert from_json(text) == config
    assert from_environment({SLIPSTREAM_NODE: text}) == config
    assert parse_config(to_mapping(config)) == config


def test_without_the_variable_slipstream_is_not_switched_on():
    assert from_environment({}) is None
    assert from_environment({SLIPSTREAM_NODE: ""}) is None


@pytest.mark.parametrize(("text", "part"), [("{", "expected the JSON"), ('{"weight_sync": {"mode": "x"}}', "mode")])
def test_a_variable_that_was_tampered_with_is_an_error(text, part):
    with pytest.raises(ConfigError, match=part):
        from_environment({SLIPSTREAM_NODE: text})


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SlipstreamConfig().events = "x"  # type: ignore[misc]
