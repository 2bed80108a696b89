"""Checks and converts the fields of the schema's dataclasses, driven by their annotations and metadata."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from slipstream.core.config.errors import ConfigError, did_you_mean


def above(bound: float, at_most: float = math.inf) -> dict[str, Any]:
    """Field metadata: the value must be greater than `bound`, and at most `at_most`."""
    expected = f"greater than {bound}" + (f" and at most {at_most:g}" if at_most < math.inf else "")
    return {"expected": expected, "accepts": lambda value: bound < value <= at_most}


def at_least(bound: float) -> dict[str, Any]:
    """Field metadata: the value must not be less than `bound`."""
    return {"expected": f"at least {bound}", "accepts": lambda value: value >= bound}


def between(low: float, high: float) -> dict[str, Any]:
    """Field metadata: the value must be from `low` to `high`, both included."""
    return {"expected": f"from {low} to {high}", "accepts": lambda value: low <= value <= high}


def or_provided(kind: str, attribute: str = "name") -> dict[str, Any]:
    """Field metadata: beside the choices of its annotation, what a plugin provides.

    :param kind: the records, by the name of `SlipstreamPlugins`' method, for example ``drafters``.
    :param attribute: of the record that the value names.
    """

    def provided(value: Any) -> bool:
        from slipstream.core.hooks import plugins  # which imports this package

        known = getattr(plugins(), kind)().values()
        return type(value) in (str, int) and value in [getattr(record, attribute) for record in known]

    return {"provided": provided}


@functools.cache
def annotations_of(schema: Any) -> Mapping[str, Any]:
    """Return the resolved annotation of each field of the dataclass `schema`."""
    hints = get_type_hints(schema)
    return {field.name: hints[field.name] for field in dataclasses.fields(schema)}


def convert_fields(instance: Any) -> None:
    """Validate each field of a frozen dataclass instance in place; called from its ``__post_init__``.

    :raises ConfigError: when a value has the wrong type or lies outside its bounds.
    """
    schema: Any = type(instance)
    for field in dataclasses.fields(instance):
        path = f"{instance.node_path}.{field.name}"
        value = getattr(instance, field.name)
        annotation = annotations_of(schema)[field.name]
        if "provided" in field.metadata and value not in get_args(annotation) and field.metadata["provided"](value):
            continue  # kept as it is
        value = _convert(path, annotation, value)
        if "accepts" in field.metadata and not field.metadata["accepts"](value):
            raise ConfigError(f"{path}: expected {field.metadata['expected']}, got {value!r}; {_advice(field)}")
        object.__setattr__(instance, field.name, value)


def _advice(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "correct it or remove the key"
    return f"correct it or remove the key (default {json.dumps(field.default)})"


def _convert(path: str, annotation: Any, value: Any) -> Any:
    """Return `value` as the type `annotation` asks for, or raise a ConfigError that names `path`."""
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
        if any(value == choice and type(value) is type(choice) for choice in choices):
            return value
        hint = did_you_mean(value, [c for c in choices if isinstance(c, str)]) if isinstance(value, str) else ""
        listed = ", ".join(map(str, choices))
        raise ConfigError(f"{path}: expected one of {listed}; got {value!r}; {hint}choose one of them")
    if get_origin(annotation) in (Union, types.UnionType):
        return None if value is None else _convert(path, get_args(annotation)[0], value)
    if annotation is float and type(value) is int:
        return float(value)
    # bool is a subclass of int, and `level: true` is a mistake
    if isinstance(value, annotation) and not (annotation is not bool and isinstance(value, bool)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{path}: expected a finite number, got {value!r}; write the number out")
        return value
    raise ConfigError(
        f"{path}: expected {_TYPE_NAMES.get(annotation, annotation.__name__)}, got {value!r} "
        f"({type(value).__name__}); {_TYPE_ADVICE.get(annotation, 'correct the value')}"
    )


_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
_TYPE_ADVICE = {
    bool: "write true or false without quotes",
    int: "write it without quotes and without a fraction",
    float: "write it without quotes",
    str: "put it in quotes",
}
