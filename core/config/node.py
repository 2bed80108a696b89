"""Builds the configuration from a mapping and carries it between processes as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from slipstream.core.config.errors import ConfigError, did_you_mean
from slipstream.core.config.fields import annotations_of
from slipstream.core.config.schema import AUTO_EVENTS, EVENTS_FILE, SlipstreamConfig

SLIPSTREAM_NODE = "SLIPSTREAM_NODE"
"""Name of the environment variable that carries the resolved node to every process of a run."""
RUN_NONCE = "SLIPSTREAM_RUN_NONCE"
"""Environment variable that sets the sockets of one run apart from those of another on the same node."""

_NOT_DISCOVERED = """\
slipstream: expected a mapping, got the plain string {value!r}.
Hydra did not discover slipstream's search-path plugin, so it took `+slipstream={value}` as a value instead of a config
group. This happens with setuptools' default editable install, whose import hook Hydra cannot list. Install from the
clone with `pip install .`, or to edit it with `pip install -e . --config-settings editable_mode=strict`.
`slipstream doctor` checks the discovery."""


def parse_config(node: Any) -> SlipstreamConfig:
    """Build the configuration from the value of the ``slipstream`` key.

    :param node: a mapping such as a ``dict`` or an omegaconf ``DictConfig`` (interpolations are resolved).
    :returns: the validated configuration; absent keys have their defaults.
    :raises ConfigError: with the full path of the offending key, what was expected, what was found, what to do.
    """
    if isinstance(node, str):
        raise ConfigError(_NOT_DISCOVERED.format(value=node))
    config: SlipstreamConfig = _build(SlipstreamConfig, node)
    return config


def to_mapping(config: SlipstreamConfig) -> dict[str, Any]:
    """Return the configuration as plain nested dictionaries, every default spelled out."""
    return dataclasses.asdict(config)


def to_json(config: SlipstreamConfig) -> str:
    """Return the configuration as one line of JSON, for the variable named by `SLIPSTREAM_NODE`."""
    return json.dumps(to_mapping(config), sort_keys=True)


def from_json(text: str) -> SlipstreamConfig:
    """Build the configuration from the output of `to_json`.

    :raises ConfigError: when the text is not JSON or the node is not valid.
    """
    try:
        node = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{SLIPSTREAM_NODE}: expected the JSON that slipstream wrote, got {text[:80]!r} ({error}); "
            f"do not set this variable by hand"
        ) from error
    return parse_config(node)


def from_environment(environment: Mapping[str, str] = os.environ) -> SlipstreamConfig | None:
    """Return the configuration of the run this process belongs to, or None when slipstream is not switched on."""
    text = environment.get(SLIPSTREAM_NODE)
    return from_json(text) if text else None


def with_absolute_paths(config: SlipstreamConfig, run_folder: str | None = None) -> SlipstreamConfig:
    """Paths as seen from here: Ray's workers have folders of their own.

    :param run_folder: the folder that the framework keeps for this run, where ``events: auto`` puts the log; None when
        there is none, and no log.
    """
    sync = config.weight_sync
    if sync.chain is not None and "://" not in sync.chain:
        sync = dataclasses.replace(sync, chain=os.path.abspath(sync.chain))
    events = config.events
    if events == AUTO_EVENTS:
        events = None if run_folder is None else os.path.join(run_folder, EVENTS_FILE)
    events = None if events is None else os.path.abspath(events)
    return dataclasses.replace(config, weight_sync=sync, events=events)


def enabled_features(config: SlipstreamConfig) -> set[str]:
    """Return the features that are switched on, by their names in the seam table."""
    modes = {
        "weight_sync": config.weight_sync.mode,
        "drafter": config.drafter.mode,
        "router": config.router.mode,
        "placement": config.placement.mode,
    }
    return {feature for feature, mode in modes.items() if mode not in ("native", "off")}


def _build(schema: Any, node: Any) -> Any:
    """Build `schema` from a mapping, nested dataclasses first."""
    path = schema.node_path
    if not isinstance(node, Mapping):
        raise ConfigError(
            f"{path}: expected a mapping with the keys {', '.join(annotations_of(schema))}; got {node!r} "
            f"({type(node).__name__}); remove the value or set the keys one by one, as in {_example(schema)}"
        )
    known = annotations_of(schema)
    values = {}
    for key, value in node.items():
        if key not in known:
            raise ConfigError(_unknown_key(path, str(key), list(known)))
        values[key] = _build(known[key], value) if dataclasses.is_dataclass(known[key]) else value
    return schema(**values)


def _unknown_key(path: str, key: str, known: list[str]) -> str:
    return f"{path}.{key}: unknown key; {did_you_mean(key, known)}valid keys: {', '.join(known)}"


def _example(schema: Any) -> str:
    first = dataclasses.fields(schema)[-1]
    return f"{schema.node_path}.{first.name}=..."
