"""The one exception of the configuration package, and the wording its messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """The ``slipstream`` node is not valid; the message says expected, got and what to do."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"did you mean 'x'? "`` for the closest of `known`, or an empty string when nothing is close."""
    closest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {closest[0]!r}? " if closest else ""
