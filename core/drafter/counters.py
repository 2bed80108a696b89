"""What a drafter decided, counted."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Counters:
    """Totals since the drafter was made."""

    requests: int = 0
    without_room: int = 0
    """Requests that the budget had no room for: they got no drafts."""
    steps: int = 0
    steps_off: int = 0
    """Steps without drafts because of the load switch."""
    proposals: int = 0
    """Drafts, empty ones included; one a request and step that was not off."""
    empty: int = 0
    """Drafts that were empty: nothing to copy, not worth it, or no room."""
    capped: int = 0
    """Drafts that the model's length bounded."""
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0

    def as_dict(self) -> dict[str, int]:
        """Name and value of each."""
        return dataclasses.asdict(self)
