"""The example in each hook's docstring is a complete plugin module that works."""

from __future__ import annotations

import inspect
import textwrap
import types

import numpy as np
import pytest
from unit_values import Old

from slipstream.core.hooks import (
    RolloutFinished,
    SlipstreamPlugins,
    Stage,
    WeightSyncFinished,
    WeightSyncStarted,
    specs,
)

ARGUMENTS = {
    "slipstream_before_weight_sync": {"event": WeightSyncStarted("run", None, 1, 4)},
    "slipstream_after_weight_sync": {"event": WeightSyncFinished("run", 1, 2, 4, 10, 1000, 20, 70, 2000, 0.5, True)},
    "slipstream_weights_changed": {"version": 2},
    "slipstream_rollout_finished": {"record": RolloutFinished("r1", "0", 2, 10, 20, 0.5, "stop")},
    "slipstream_stage_started": {"stage": Stage("rollout", 1)},
    "slipstream_stage_finished": {"stage": Stage("rollout", 1)},
}
PROVIDERS = {
    "slipstream_codecs": "codecs",
    "slipstream_transports": "transports",
    "slipstream_drafters": "drafters",
    "slipstream_routing_policies": "routing_policies",
    "slipstream_schedulers": "schedulers",
    "slipstream_engines": "engines",
    "slipstream_frameworks": "frameworks",
}
HOOKS = {
    name: function
    for _, specification in inspect.getmembers(specs, inspect.isclass)
    if specification.__module__ == specs.__name__
    for name, function in inspect.getmembers(specification, inspect.isfunction)
}


def example_of(name: str) -> types.ModuleType:
    _, found, source = inspect.getdoc(HOOKS[name]).partition("Example::\n")
    assert found, f"{name} has no example"
    module = types.ModuleType(f"example_of_{name}")
    exec(compile(textwrap.dedent(source), module.__name__, "exec"), module.__dict__)
    return module


def with_example(name: str) -> SlipstreamPlugins:
    plugins = SlipstreamPlugins()
    plugins.register(example_of(name), "example")
    return plugins


def test_every_hook_is_a_provider_or_an_event():
    assert set(HOOKS) == set(PROVIDERS) | set(ARGUMENTS)


def test_the_specification_module_holds_specifications_only():
    assert not [name for name, value in inspect.getmembers(specs, inspect.isfunction)]
    assert all("fires in" in inspect.getdoc(hook) for hook in HOOKS.values())


@pytest.mark.parametrize("name", PROVIDERS)
def test_the_example_of_a_provider_provides_one_record(name):
    records = getattr(with_example(name), PROVIDERS[name])()
    assert len(records) == 1


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_example_of_an_event_is_called(name, capsys):
    result = getattr(with_example(name).hook, name)(**ARGUMENTS[name])
    assert result == []
    assert capsys.readouterr().out or name == "slipstream_weights_changed"


def test_the_example_codec_restores_what_it_encoded():
    codec = with_example("slipstream_codecs").codec("plain")
    old = Old(np.arange(10, dtype=np.uint16), "bfloat16")
    data = codec.encoder().encode(old, np.array([2, 7]), np.array([5, 6], np.uint16))
    positions, values = codec.decode(data, old)
    assert (positions.tolist(), values.tolist(), values.dtype) == ([2, 7], [5, 6], np.uint16)


def test_the_example_demo_runs(capsys):
    demo = with_example("slipstream_frameworks").framework("toy").demo
    assert demo(model="m", arguments=[]) == 0
    assert capsys.readouterr().out == "training m\n"
