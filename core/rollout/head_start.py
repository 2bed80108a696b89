"""Staggered siblings: whether a group's first sample gets a head start, for the drafter to copy from."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


class DraftGain(Protocol):
    """What drafting gains from a head start; the drafter's side of the decision."""

    def tokens_per_step(self, head_start: int, output_tokens: float) -> float:
        """Return tokens per verification step over those of siblings that start together.

        :param head_start: tokens the first sibling has when the others start.
        :param output_tokens: expected length of a sample.
        """


@dataclass(frozen=True, slots=True)
class StudiedGain:
    """The gain that the drafting study measured by replay on recorded groups, over the head start's share of a sample.

    A model, not a measurement of this run: 8 siblings, greedy verification, drafter at theta 0.2. The default is its
    set of mathematical answers (about 400 tokens long; 2.26 tokens a step without a head start).
    """

    shares: Sequence[float] = (0.0, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0)
    gains: Sequence[float] = (1.0, 1.035, 1.084, 1.186, 1.336, 1.633, 1.81)

    def tokens_per_step(self, head_start: int, output_tokens: float) -> float:
        """Interpolate the measured points."""
        share = min(head_start / max(output_tokens, 1.0), self.shares[-1])
        at = bisect.bisect_right(self.shares, share)
        if at == len(self.shares):
            return self.gains[-1]
        low, high = self.shares[at - 1], self.shares[at]
        return self.gains[at - 1] + (self.gains[at] - self.gains[at - 1]) * (share - low) / (high - low)


@dataclass(frozen=True, slots=True)
class HeadStart:
    """Decides the head start from queue depth and predicted work.

    The price of holding siblings was simulated without drafting (routing study, section 5.1): relative step time by
    trajectories per slot and head start. Off in the tail, where held siblings would leave slots empty.
    """

    gain: DraftGain = field(default_factory=StudiedGain)
    drafting_share: float = 1.0
    """Share of decode steps in which the drafter's load switch lets it draft; 0 when drafting is off."""

    lengths: Sequence[int] = (32, 64, 128, 256)
    full_load: float = 8.0
    """Trajectories per slot from which any length is cheap."""

    longest_below: int = 128
    """Longest head start at lower load."""

    tail: float = 1.0
    """Waiting trajectories per slot below which nobody is held."""

    def tokens(self, waiting_per_slot: float, output_tokens: float) -> int:
        """Return the head start that pays most; 0 when none does.

        :param waiting_per_slot: trajectories that have not started, per slot of all replicas.
        """
        if waiting_per_slot < self.tail or not self.drafting_share:
            return 0
        best, most = 0, 0.0
        for length in self.lengths:
            if length >= output_tokens or (waiting_per_slot < self.full_load and length > self.longest_below):
                continue
            speedup = self.gain.tokens_per_step(length, output_tokens)
            net = self.drafting_share * (1.0 - 1.0 / speedup) - self.price(waiting_per_slot, length)
            if net > most:
                best, most = length, net
        return best

    def price(self, waiting_per_slot: float, head_start: int) -> float:
        """Return the share of step time that holding siblings costs: the worst of the study's four workloads."""
        if waiting_per_slot >= self.full_load:
            return 0.03
        return 0.03 if head_start <= 32 else 0.04 if head_start <= 128 else 0.06
