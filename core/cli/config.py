"""``slipstream config``: what a command line makes of the slipstream node."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from omegaconf import OmegaConf

from slipstream.core.cli.compose import compose_node
from slipstream.core.config import SlipstreamConfig, parse_config, to_mapping
from slipstream.core.hooks import Framework, PluginError, plugins
from slipstream.core.seams import installed_version


def run(overrides: Sequence[str], framework: str, config_name: str, *, as_json: bool) -> None:
    """Compose, validate and print the node; remarks go to standard error.

    :raises ConfigError: when the node is not valid.
    """
    primary = _primary(framework, config_name)
    node = compose_node(overrides, primary)
    _remark(f"composed with {primary}" if primary else "composed without a framework: slipstream's own groups only")
    if node is None:
        _remark("slipstream is not switched on by these overrides; add +slipstream=sync")
    resolved = {"slipstream": to_mapping(SlipstreamConfig() if node is None else parse_config(node))}
    print(json.dumps(resolved, indent=2) if as_json else OmegaConf.to_yaml(resolved).rstrip())


def _primary(framework: str, config_name: str) -> str | None:
    chosen = plugins().framework(framework) if framework else _first_installed()
    if chosen is None or chosen.hydra_config is None:
        if framework or config_name:
            raise PluginError(
                f"expected a framework with a Hydra config, got {framework or 'none installed'!r}; "
                f"leave out --framework and --config-name to compose slipstream's own groups"
            )
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
