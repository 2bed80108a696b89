"""What drafts are worth: the drafter's own chances, corrected by how earlier drafts of their kind fared."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import numpy as np
from numpy.typing import NDArray

KINDS: Final = (1.0, 4.0)
"""Bounds of the kinds of draft, in tokens expected to be accepted: that guesses are refused says nothing of copies."""
PRIOR: Final = 2.0
"""Expected tokens that count as accepted before anything was observed."""
MEMORY: Final = 256.0
"""Expected tokens after which what was observed counts half."""


class Expectation:
    """The ratio of accepted to expected tokens of each kind of draft."""

    def __init__(self) -> None:
        """Start with the drafter's word."""
        self._expected = [PRIOR] * (len(KINDS) + 1)
        self._accepted = [PRIOR] * (len(KINDS) + 1)

    def of(self, expected: NDArray[np.float32], lengths: NDArray[np.int32]) -> float:
        """Tokens that will be accepted of some drafts, in all.

        :param expected: float32[n], by the drafter's own chances; `lengths`: int32[n], tokens drafted.
        """
        kinds = np.searchsorted(KINDS, expected)
        ratios = np.divide(self._accepted, self._expected)
        return float(np.minimum(expected * ratios[kinds], lengths).sum())

    def observed(self, expected: float, accepted: int) -> None:
        """Learn from a draft."""
        kind = bisect_left(KINDS, expected)
        self._expected[kind] += expected
        self._accepted[kind] += accepted
        if self._expected[kind] > MEMORY:
            self._expected[kind] /= 2
            self._accepted[kind] /= 2
