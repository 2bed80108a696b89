"""Whether drafting pays on a replica at its present load, from measured times of its steps.

Steps are sorted by batch size (powers of two). For each size two things are learned: the time of a step without
drafts, and the line time = start + slope x drafted tokens of steps with them. Drafting stays on while

    tokens per step with drafts / time with drafts  >  tokens per step without / time without

with a margin either way, so that it does not flip on noise. Both kinds of step are probed again now and then, so that a
decision can be revised: soon at first, then at doubling intervals that are long enough for a probe to cost at most a
hundredth of the time between two. The same measurements give the cost of one more verified token,
which sets how unlikely a drafted token may be (`threshold`).

A step that took far longer than others (something was compiled or captured in it, another process had the cores) counts
as a slow one, not for what it took: a single such step would keep drafts off for tens of thousands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

RATE: Final = 0.05
"""Weight of the latest step in every mean."""
PROBE_RATE: Final = 0.25
"""The same while probing: what was measured before the last probe is old."""
MARGIN: Final = 0.03
"""Share by which the other mode must be faster before it is chosen."""
PROBE_STEPS: Final = 4
FIRST_PROBE: Final = 8
FIRST_INTERVAL: Final = 64
LONGEST_INTERVAL: Final = 1024
"""Of doubling; a dear probe may be farther away."""
PROBE_SHARE: Final = 0.01
"""Most of the time that probes may cost."""
SLOW: Final = 2.0
"""A step counts for at most so many times what steps of its kind take, a token being worth a token."""


@dataclass
class _Load:
    """What is known about one batch size."""

    on: bool = True
    plain: float = 0.0
    """Seconds per row of a step without drafts, 0 while unknown; mean."""
    plain_steps: int = 0
    drafted_steps: int = 0
    tokens: float = 1.0
    """Tokens per row of a step with drafts; mean."""
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    """Means of drafted tokens per row and seconds per row, and of their products."""
    probing: int = 0
    """Steps that the mode which is not chosen is still tried for."""
    until_probe: int = FIRST_PROBE
    interval: int = FIRST_INTERVAL


class LoadSwitch:
    """The decision of one replica."""

    def __init__(self, verify_cost: float = 0.0) -> None:
        """Start with drafts on.

        :param verify_cost: cost of one more verified token per request, as a share of a step without drafts; 0 learns
            it from the times given to `timed`.
        """
        self._fixed_cost = verify_cost
        self._loads: dict[int, _Load] = {}
        self.turned_on = 0
        self.turned_off = 0
        self.probes = 0

    def wants_drafts(self, batch: int) -> bool:
        """Whether a step of `batch` requests should draft."""
        load = self._loads.get(_size(batch))
        return load is None or load.on != (load.probing > 0)

    def cost(self, batch: int) -> float | None:
        """Cost of one more verified token per request, as a share of a step without drafts; None while unknown."""
        if self._fixed_cost > 0:
            return self._fixed_cost
        load = self._loads.get(_size(batch))
        if load is None or load.plain_steps < PROBE_STEPS or load.drafted_steps < 4 * PROBE_STEPS:
            return None
        variance = load.xx - load.x * load.x
        if variance <= 1e-6 * load.xx or load.x <= 0:
            return None
        slope = (load.xy - load.x * load.y) / variance
        # noise must not make verification free: at least a hundredth of what an even share would be
        return max(slope, 0.01 * load.y / (1 + load.x)) / load.plain

    def timed(self, batch: int, drafted: int, emitted: int, seconds: float) -> None:
        """Learn from a finished step.

        :param batch: its requests; `drafted`: tokens drafted for it, in all; `emitted`: tokens it gave, in all.
        :param seconds: from the start of drafting to the end of sampling.
        """
        if batch <= 0 or not (seconds > 0 and math.isfinite(seconds)):
            return
        load = self._loads.setdefault(_size(batch), _Load())
        least = PROBE_RATE if load.probing else RATE
        x, y = drafted / batch, seconds / batch
        if drafted == 0:
            if load.plain_steps:
                load.plain = min(load.plain, SLOW * y)  # what was out of line may as well have been the first
                y = min(y, SLOW * load.plain)
            load.plain_steps += 1
            load.plain += max(least, 1 / load.plain_steps) * (y - load.plain)
        else:
            if load.drafted_steps:
                more = (1 + x) / (1 + load.x)
                excess = max(1.0, load.y / (SLOW * y * max(1.0, 1 / more)))
                load.y, load.xy = load.y / excess, load.xy / excess
                y = min(y, SLOW * load.y * max(1.0, more))
            load.drafted_steps += 1
            rate = max(least, 1 / load.drafted_steps)
            load.x += rate * (x - load.x)
            load.y += rate * (y - load.y)
            load.xx += rate * (x * x - load.xx)
            load.xy += rate * (x * y - load.xy)
            load.tokens += rate * (emitted / batch - load.tokens)
        self._decide(load)

    def _decide(self, load: _Load) -> None:
        if load.probing > 0:
            load.probing -= 1
            if load.probing == 0:
                self._compare(load)
            return
        load.until_probe -= 1
        if load.until_probe <= 0:
            load.probing = PROBE_STEPS
            load.until_probe = FIRST_INTERVAL
            self.probes += 1

    def _compare(self, load: _Load) -> None:
        if min(load.plain_steps, load.drafted_steps) < PROBE_STEPS:  # one of them may be the one out of line
            load.until_probe = FIRST_PROBE
            return
        gain = load.tokens / load.y * load.plain
        better = gain > 1 + MARGIN if not load.on else gain > 1 - MARGIN
        if better == load.on:
            load.until_probe = load.interval
            load.interval = min(2 * load.interval, LONGEST_INTERVAL)
        else:
            load.on = better
            load.interval = FIRST_INTERVAL
            self.turned_on += better
            self.turned_off += not better
        # What the steps of a probe lose against as many tokens of the chosen kind, in steps of that kind.
        lost = PROBE_STEPS * ((1 - gain) * load.y / load.plain if not better else (gain - 1) / load.tokens)
        load.until_probe = max(load.until_probe, round(lost / PROBE_SHARE))


def _size(batch: int) -> int:
    return max(0, batch - 1).bit_length()
