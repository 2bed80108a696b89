"""Model-free speculative decoding: drafts are copied from what was written before.

Where to look:

- `suffix`: the drafter of one engine replica, what adapters call; `load_switch`: whether drafting pays;
- `history`: groups, byte budget, eviction; `snapshot`: files and merging;
- compiled, over the flat arrays of `arrays`: `blocks` (tokens), `contexts` (the index), `candidates` (what is copied
  from), `vote` (choice, probability, learning), `steps` (a step of a batch).
"""

from slipstream.core.drafter.errors import DrafterError, HistoryFileError
from slipstream.core.drafter.load_switch import LoadSwitch
from slipstream.core.drafter.suffix import SuffixDrafter

__all__ = ["DrafterError", "HistoryFileError", "LoadSwitch", "SuffixDrafter"]
