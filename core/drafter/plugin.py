"""slipstream's own drafter as an ordinary plugin: another distribution can replace it."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.core.drafter.suffix import SuffixDrafter
from slipstream.core.hooks import Drafter, hookimpl


@hookimpl
def slipstream_drafters() -> Iterable[Drafter]:
    """The suffix drafter."""
    yield Drafter(name="suffix", factory=SuffixDrafter)
