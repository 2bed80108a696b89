"""Finds a seam in the installed code and reads the parameters it takes."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


_ADDED_BY_RAY = frozenset({"_ray_trace_ctx"})
"""Parameters that `ray.remote(cls)` gives to the methods of `cls`, in place, for tracing."""


class NotFoundError(Exception):
    """The target does not resolve; the message says how far it got."""


def resolve(target: str) -> Any:
    """Import the module of ``"module:attribute.path"`` and return the attribute.

    :raises NotFoundError: when the module cannot be imported or an attribute is absent.
    """
    module_name, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # whatever third-party code raises at import makes the seam unusable
        raise NotFoundError(f"import of {module_name} failed: {type(error).__name__}: {error}") from error
    reached = module_name
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise NotFoundError(f"{reached} has no attribute {name!r}") from None
        reached = f"{reached}.{name}"
    return found


def parameters_of(attribute: Any) -> tuple[str, ...] | None:
    """Return the parameter names of a callable without ``self`` or ``cls``, or None when it has no signature."""
    try:
        parameters = inspect.signature(attribute).parameters.values()
    except (TypeError, ValueError):
        return None
    own = (parameter for parameter in parameters if parameter.name not in _ADDED_BY_RAY)
    return without_receiver([_STARS.get(parameter.kind, "") + parameter.name for parameter in own])


def without_receiver(names: list[str]) -> tuple[str, ...]:
    """Drop a leading ``self`` or ``cls``: whether it shows depends on how the attribute was reached."""
    return tuple(names[1:] if names and names[0] in ("self", "cls") else names)
