"""The `slipstream` node as command-line options: `--slipstream.<part>.<setting>`, or a file that holds the node."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from slipstream.core.config import ConfigError, SlipstreamConfig, parse_config

PREFIX = "--slipstream."
_FILE = f"{PREFIX}config"
_MODE = "mode"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add every setting of the node to `parser`, as a group of its own; none has a default there."""
    group = parser.add_argument_group(
        "slipstream",
        "faster weight sync and rollout; what each setting means: docs/settings.md",
    )
    group.add_argument(_FILE, metavar="FILE", help="YAML file with the slipstream node; options win over it")
    for option, path, default in _settings():
        group.add_argument(option, dest=_dest(path), metavar=path[-1].upper(), help=f"default {default}")


def parse_options(arguments: Sequence[str]) -> tuple[SlipstreamConfig, list[str]]:
    """Take slipstream's options out of a command line.

    Returns:
        The validated node, and the arguments that are not slipstream's.

    Raises:
        ConfigError: an option is unknown or its value not valid, or nothing says whether to switch anything on.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    add_options(parser)
    try:
        found, rest = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from error
    values = vars(found)
    node = _from_file(values[_dest(("config",))])
    unknown = [argument for argument in rest if argument.startswith(PREFIX.rstrip("."))]
    for argument in unknown:  # `parse_config` knows what it should have been
        _set(node, tuple(argument.partition("=")[0].removeprefix(PREFIX).split(".")), None)
    for _, path, _ in _settings():
        if values[_dest(path)] is not None:
            _set(node, path, _value(values[_dest(path)]))
    config = parse_config(node)
    if unknown:
        raise ConfigError(f"{unknown[0]}: unknown option; --help lists slipstream's options")
    if not any(_MODE in (node.get(part) or {}) for part in _parts()):
        raise ConfigError(
            "slipstream: expected an option that switches something on, got none, with which the run would go on "
            f"without slipstream; add {PREFIX}weight_sync delta"
        )
    return config, rest


def _settings() -> Iterator[tuple[str, tuple[str, ...], str]]:
    """(option, path in the node, default) of every setting; a part's mode is the option of the part itself."""
    for part, schema in _parts().items():
        for field in dataclasses.fields(schema):
            path = (part, field.name)
            name = part if field.name == _MODE else ".".join(path)
            yield f"{PREFIX}{name}", path, _described(schema, field)
    for field in dataclasses.fields(SlipstreamConfig):
        if field.name not in _parts():
            yield f"{PREFIX}{field.name}", (field.name,), _described(SlipstreamConfig, field)


def _parts() -> dict[str, Any]:
    hints = get_type_hints(SlipstreamConfig)
    return {name: hint for name, hint in hints.items() if inspect.isclass(hint) and dataclasses.is_dataclass(hint)}


def _described(schema: Any, field: dataclasses.Field[Any]) -> str:
    choices = get_args(get_type_hints(schema)[field.name])
    named = [str(choice) for choice in choices if isinstance(choice, str | int)]
    return f"{field.default}{' of ' + ', '.join(named) if named else ''}".replace("%", "%%")


def _dest(path: tuple[str, ...]) -> str:
    return ".".join(("slipstream", *path))


def _from_file(name: str | None) -> dict[str, Any]:
    if name is None:
        return {}
    import yaml

    try:
        node = yaml.safe_load(Path(name).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{_FILE}: expected a YAML file with the slipstream node, got {name}: {error}") from error
    if isinstance(node, dict) and set(node) == {"slipstream"}:
        node = node["slipstream"]
    if not isinstance(node, dict):
        raise ConfigError(f"{_FILE}: expected a mapping such as `weight_sync: {{mode: delta}}` in {name}, got {node!r}")
    return node


def _value(text: str) -> Any:
    """Numbers, true, false and null as YAML writes them; `off` stays a word."""
    import yaml

    value = yaml.safe_load(text)
    return value if isinstance(value, int | float | None) and text.lower() not in ("off", "on", "no", "yes") else text


def _set(node: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        if not isinstance(node.get(part), dict):
            node[part] = {}
        node = node[part]
    node[path[-1]] = value
