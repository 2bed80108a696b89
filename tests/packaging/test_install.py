"""What an installed slipstream looks like from outside: from a wheel, and from a strict editable install."""

from __future__ import annotations

from pathlib import Path

from .conftest import Installed

MODULES = ("slipstream.core", "slipstream.triton_kernels", "slipstream.plugins.verl")

COMPOSE = """
import json
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
with initialize_config_module("verl.trainer.config", version_base=None):
    config = compose("ppo_trainer", overrides=["+slipstream=sync"])
node = config.slipstream
import verl
print(json.dumps({
    "node": OmegaConf.to_container(node) if isinstance(node, DictConfig) else repr(node),
    "verl": list(verl.__path__),
    "has_data_proto": hasattr(verl, "DataProto"),
}))
"""


def test_packages_come_from_the_install(installed: Installed) -> None:
    files = installed.ask(
        "import importlib, json\n"
        f"print(json.dumps({{name: importlib.import_module(name).__file__ for name in {MODULES!r}}}))"
    )
    for name, file in files.items():
        assert Path(file).is_relative_to(installed.home), f"{name} was imported from {file}"


def test_no_folder_name_is_importable(installed: Installed) -> None:
    """`plugins` on the path would make `plugins/verl` the framework; other distributions may ship a `tests`."""
    names = ["core", "plugins", "triton_kernels", "env", "tests", "benchmarks"]
    found = installed.ask(
        "import json\n"
        "from importlib.util import find_spec\n"
        f"specs = filter(None, map(find_spec, {names!r}))\n"
        "print(json.dumps([[s.name, list(s.submodule_search_locations or [s.origin])] for s in specs]))"
    )
    assert [name for name, places in found if any(Path(p).is_relative_to(installed.home) for p in places)] == []


def test_namespaces_stay_open(installed: Installed) -> None:
    """Other distributions may add to slipstream.plugins and hydra_plugins, so neither may have an __init__."""
    closed = installed.ask(
        "import importlib, json\n"
        "names = ['slipstream', 'slipstream.plugins', 'hydra_plugins']\n"
        "print(json.dumps([n for n in names if getattr(importlib.import_module(n), '__file__', None)]))"
    )
    assert closed == []


def test_entry_points_are_registered_once(installed: Installed) -> None:
    found = installed.ask(
        "import json\n"
        "from importlib.metadata import entry_points\n"
        "print(json.dumps([[e.group, e.value] for group in ('verl.plugins', 'console_scripts')\n"
        "    for e in entry_points(group=group) if e.name == 'slipstream']))"
    )
    assert found == [["verl.plugins", "slipstream.plugins.verl.entry"], ["console_scripts", "slipstream.core.cli:main"]]


def test_entry_points_load(installed: Installed) -> None:
    loaded = installed.ask(
        "import json\n"
        "from importlib.metadata import entry_points\n"
        "points = [e for g in ('verl.plugins', 'console_scripts') for e in entry_points(group=g, name='slipstream')]\n"
        "print(json.dumps([e.load() is not None for e in points]))"
    )
    assert loaded == [True, True]


def test_hydra_composes_the_groups_into_the_real_verl(installed: Installed) -> None:
    """Without the search-path plugin Hydra does not fail: it adds the plain string 'sync'."""
    found = installed.ask(COMPOSE)
    assert [Path(path).parts[-2:] for path in found["verl"]] == [("site-packages", "verl")]
    assert found["has_data_proto"]
    assert isinstance(found["node"], dict), f"+slipstream=sync became {found['node']}"
    assert found["node"]
