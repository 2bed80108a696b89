"""The Hydra config groups, alone and on verl's real configs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hydra import compose, initialize, initialize_config_dir, initialize_config_module
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from slipstream.core.config import RouterConfig, SlipstreamConfig, parse_config, to_mapping

BACKEND = "actor_rollout_ref.rollout.checkpoint_engine.backend"
needs_verl = pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def compose_alone(*overrides: str) -> DictConfig:
    with initialize(config_path=None, version_base=None):
        return compose(overrides=list(overrides))


def compose_verl(*overrides: str) -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


def outcome(config: DictConfig) -> tuple[str, str | None]:
    return parse_config(config.slipstream).weight_sync.mode, OmegaConf.select(config, BACKEND)


CHOICES = [
    (["+slipstream=sync"], "delta", "slipstream"),
    (["+slipstream=full"], "delta", "slipstream"),
    (["+slipstream=sync", "slipstream/weight_sync=dense"], "dense", "slipstream"),
    (["+slipstream=full", "slipstream/weight_sync=dense"], "dense", "slipstream"),
    (["+slipstream=sync", "slipstream/weight_sync=native"], "native", "naive"),
    (["+slipstream/weight_sync=delta"], "delta", "slipstream"),
    (["+slipstream/weight_sync=dense"], "dense", "slipstream"),
    (["+slipstream/weight_sync=native"], "native", "naive"),
    (["+slipstream=sync", "slipstream.weight_sync.mode=dense"], "dense", "slipstream"),
    (["+slipstream=sync", f"{BACKEND}=nccl"], "delta", "nccl"),
]


@needs_verl
@pytest.mark.parametrize(("overrides", "mode", "backend"), CHOICES)
def test_one_override_on_verls_trainer_switches_slipstream_on(overrides, mode, backend):
    assert outcome(compose_verl(*overrides)) == (mode, backend)


@needs_verl
@pytest.mark.parametrize(("overrides", "mode", "backend"), [CHOICES[2], CHOICES[-1]])
def test_an_explicit_value_beats_the_group_when_it_comes_first(overrides, mode, backend):
    assert outcome(compose_verl(*reversed(overrides))) == (mode, backend)


@pytest.mark.parametrize(
    ("overrides", "mode"), [(overrides, mode) for overrides, mode, _ in CHOICES if BACKEND not in overrides[-1]]
)
def test_the_groups_compose_without_a_framework(overrides, mode):
    assert parse_config(compose_alone(*overrides).slipstream).weight_sync.mode == mode


@needs_verl
def test_slipstream_changes_nothing_else_of_verls_config():
    plain = OmegaConf.to_container(compose_verl())
    patched = OmegaConf.to_container(compose_verl("+slipstream=sync"))
    assert patched.pop("slipstream")["weight_sync"]["mode"] == "delta"
    assert patched["actor_rollout_ref"]["rollout"]["checkpoint_engine"].pop("backend") == "slipstream"
    assert plain["actor_rollout_ref"]["rollout"]["checkpoint_engine"].pop("backend") == "naive"
    assert patched == plain


@needs_verl
def test_the_fully_async_trainer_composes_too():
    package = importlib.util.find_spec("verl.experimental.fully_async_policy")
    with initialize_config_dir(str(Path(package.origin).parent / "config"), version_base=None):
        config = compose("fully_async_ppo_trainer", overrides=["+slipstream=sync"])
    assert outcome(config) == ("delta", "slipstream")


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("slipstream.weight_sync.level=0", "level", 0),
        ("slipstream.weight_sync.timeout_seconds=60", "timeout_seconds", 60.0),
        ("slipstream.weight_sync.strict_seams=false", "strict_seams", False),
        ("slipstream.weight_sync.snapshot=device", "snapshot", "device"),
        ("slipstream.weight_sync.audit_every=10", "audit_every", 10),
    ],
)
def test_a_setting_is_overridden_without_a_plus(override, key, value):
    config = compose_alone(override, "+slipstream=sync")
    assert getattr(parse_config(config.slipstream).weight_sync, key) == value


@pytest.mark.parametrize("mode", ["cache_aware", "native"])
def test_the_router_is_a_group_of_its_own(mode):
    config = parse_config(compose_alone("+slipstream=sync", f"slipstream/router={mode}").slipstream)
    assert config.router == RouterConfig(mode=mode)
    assert config.weight_sync.mode == "delta"


@pytest.mark.parametrize(
    ("start", "weight_sync", "drafter", "placement"),
    [
        ("sync", "delta", "off", "native"),
        ("rollout", "native", "suffix", "native"),
        ("full", "delta", "suffix", "native"),
        ("placement", "native", "off", "graph"),
    ],
)
def test_what_each_start_switches_on(start, weight_sync, drafter, placement):
    config = parse_config(compose_alone(f"+slipstream={start}").slipstream)
    assert (config.weight_sync.mode, config.drafter.mode) == (weight_sync, drafter)
    assert config.placement.mode == placement
    both = parse_config(compose_alone(f"+slipstream={start}", "slipstream/placement=graph").slipstream)
    assert both.placement.mode == "graph"
    assert (
        parse_config(compose_alone(f"+slipstream={start}", "slipstream/drafter=off").slipstream).drafter.mode == "off"
    )


def test_events_are_overridden_without_a_plus():
    assert parse_config(compose_alone("+slipstream=sync", "slipstream.events=run.log").slipstream).events == "run.log"


def test_the_native_group_spells_out_the_defaults_of_the_schema():
    written = OmegaConf.to_container(compose_alone("+slipstream=sync", "slipstream/weight_sync=native").slipstream)
    assert written == to_mapping(SlipstreamConfig())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+slipstream=nope"], "Available options in 'slipstream':\n\tfull\n\tplacement\n\trollout\n\tsync"),
        (["+slipstream=sync", "slipstream/weight_sync=nope"], "delta\n\tdense\n\tnative"),
        (["+slipstream=sync", "+slipstream/weight_sync=dense"], "Multiple values for slipstream/weight_sync"),
        (["+slipstream=sync", "slipstream.weight_sync.mod=delta"], "mod"),
    ],
)
def test_a_mistyped_override_is_refused_by_hydra(overrides, message):
    with pytest.raises(HydraException) as raised:
        compose_alone(*overrides)
    assert message in str(raised.value)


def test_the_search_path_plugin_imports_nothing_heavy():
    source = importlib.util.find_spec("hydra_plugins.slipstream_searchpath").loader.get_source(
        "hydra_plugins.slipstream_searchpath"
    )
    imports = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert all(line.startswith("from hydra.") for line in imports)
