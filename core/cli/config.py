"""``slipstream config``: what a command line makes of the slipstream node."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from omegaconf import OmegaConf

from slipstream.core.cli.compose import compose_config, node_of
from slipstream.core.config import SlipstreamConfig, parse_config, to_mapping
from slipstream.core.hooks import Framework, PluginError, plugins
from slipstream.core.seams import installed_version


def run(overrides: Sequence[str], framework: str, config_name: str, *, as_json: bool) -> None:
    """Compose, validate and print the node; remarks go to standard error.

    :raises ConfigError: when the node is not valid, or the run of the framework would refuse it.
    """
    chosen = _framework(framework, config_name)
    primary = _primary(chosen, config_name)
    composed = compose_config(overrides, primary)
    node = node_of(composed)
    _remark(f"composed with {primary}" if primary else "composed without a framework: slipstream's own groups only")
    config = SlipstreamConfig() if node is None else parse_config(node)
    if node is not None and chosen is not None and chosen.check_config is not None:
        chosen.check_config(composed, config)
    if node is None:
        _remark("slipstream is not switched on by these overrides; add +slipstream=sync")
    elif config.weight_sync.mode == "native":
        _remark(
            "slipstream is off: weight_sync.mode is native; +slipstream=sync without slipstream/weight_sync=native "
            "switches it on"
        )
    resolved = {"slipstream": to_mapping(config)}
    print(json.dumps(resolved, indent=2) if as_json else OmegaConf.to_yaml(resolved).rstrip())


def _framework(name: str, config_name: str) -> Framework | None:
    chosen = plugins().framework(name) if name else _first_installed()
    if (name or config_name) and (chosen is None or chosen.hydra_config is None):
        raise PluginError(
            f"expected a framework with a Hydra config, got {name or 'none installed'!r}; "
            f"leave out --framework and --config-name to compose slipstream's own groups"
        )
    return chosen


def _primary(chosen: Framework | None, config_name: str) -> str | None:
    if chosen is None or chosen.hydra_config is None:
        return None
    package, _, usual_name = chosen.hydra_config.partition(":")
    return f"{package}:{config_name or usual_name}"


def _first_installed() -> Framework | None:
    for framework in plugins().frameworks().values():
        if framework.hydra_config is not None and installed_version(framework.distribution) is not None:
            return framework
    return None


def _remark(text: str) -> None:
    print(f"# {text}", file=sys.stderr)
