"""Whether drafts pay on a replica at its present load: what is expected of them, at the measured time of its steps.

Steps are sorted by batch size (powers of two). For each size two things are learned: the time of a step without
drafts, and the line time = start + slope x drafted tokens of steps with them. The drafts of a step are verified if

    tokens expected with them / time with them  >  tokens without / time without        (by a margin)

Verifying a single drafted token may cost most of what verifying ten does (other kernels), so weak drafts can be refused
and confident ones taken at the same load: what earlier drafts were worth decides nothing. A size whose drafts were
refused several times in a row is off: then only a few requests are looked at in a step (see `SuffixDrafter.propose`).

A kind of step that has not been seen for long is measured again, so that a decision can be revised: soon at first, then
at doubling intervals that are long enough for it to cost at most a two-hundredth of the time between two. The same
measurements give the cost of one more verified token, which sets how unlikely a drafted token may be (`threshold`).

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
"""Share by which a step with drafts must be the faster one."""
PATIENCE: Final = 8
"""Steps in a row whose drafts do not pay, after which a batch size is off where drafts lose MARGIN on average."""
PROBE_STEPS: Final = 4
FIRST_PROBE: Final = 8
FIRST_INTERVAL: Final = 64
LONGEST_INTERVAL: Final = 1024
"""Of doubling; a dear probe may be farther away."""
PROBE_SHARE: Final = 0.005
"""Most of the time that probes may cost."""
SLOW: Final = 1.5
"""A step counts for at most so many times what steps of its kind take, a token being worth a token."""
LEAST_SPREAD: Final = 0.02
"""Variance of drafted tokens, as a share of their mean square, of which half the slope is believed."""


@dataclass
class _Load:
    """What is known about one batch size."""

    on: bool = True
    plain: float = 0.0
    """Seconds per row of a step without drafts, 0 while unknown; mean."""
    plain_steps: int = 0
    drafted_steps: int = 0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    """Means of drafted tokens per row and seconds per row, and of their products."""
    gain: float = 1.0
    """Mean of the gains that were expected of drafts."""
    refused: int = 0
    """Latest steps in a row whose drafts did not pay."""
    probing: int = 0
    """Steps of the other kind that are still to be measured."""
    others: int = 0
    """Steps of the other kind since the last probe: drafted ones while off, plain ones while on."""
    until_probe: int = FIRST_PROBE
    interval: int = FIRST_INTERVAL

    @property
    def known(self) -> bool:
        """Whether both kinds of step were measured; one of fewer may be the one out of line."""
        return min(self.plain_steps, self.drafted_steps) >= PROBE_STEPS

    @property
    def slope(self) -> float | None:
        """Seconds per row of one more drafted token per row; None while unknown."""
        if self.drafted_steps < 4 * PROBE_STEPS or self.x <= 0:
            return None
        # Where drafts were much alike their times are mostly noise: a slope that is too small is soon corrected by
        # longer drafts, one that is too large keeps them short.
        slope = (self.xy - self.x * self.y) / (self.xx - self.x * self.x + LEAST_SPREAD * self.xx)
        return min(max(slope, 0.01 * self.y / (1 + self.x)), max(0.0, self.y - self.plain) / self.x)

    def seconds(self, x: float) -> float:
        """Of a step that drafts `x` tokens per row, per row; one that was never so long is taken to be cheap."""
        slope = self.slope
        if slope is None:
            slope = 0.01 * self.y / (1 + self.x)
        return max(self.plain, self.y + slope * (x - self.x))

    def gain_of(self, x: float, expected: float) -> float:
        """Speed of a step that drafts `x` tokens per row, of which `expected` are accepted, over one without drafts."""
        return (1 + expected) * self.plain / self.seconds(x)

    @property
    def next_probe(self) -> int:
        """Steps until a probe."""
        if not self.known:
            return FIRST_PROBE
        # What a step of a probe loses, in steps of the chosen kind.
        lost = 1 - 1 / self.gain if self.on else (1 - self.gain) * self.y / self.plain
        return max(self.interval, round(PROBE_STEPS * lost / PROBE_SHARE))


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
        """Whether drafts are on for steps of `batch` requests, or probed."""
        load = self._loads.get(_size(batch))
        return load is None or load.on != (load.probing > 0)

    def wants_plain(self, batch: int) -> bool:
        """Whether the next step of `batch` requests should be without drafts, to be measured."""
        load = self._loads.get(_size(batch))
        return load is not None and load.on and load.probing > 0

    def promises(self, batch: int, drafted: float, expected: float) -> bool:
        """Whether drafts would pay, by what some requests of an off batch let expect of all; decides nothing."""
        load = self._loads.get(_size(batch))
        if load is None or not load.known:
            return drafted > 0
        return drafted > 0 and (load.probing > 0 or load.gain_of(drafted / batch, expected / batch) > 1 + MARGIN)

    def pays(self, batch: int, drafted: int, expected: float) -> bool:
        """Whether a step should verify its drafts.

        :param batch: its requests; `drafted`: tokens drafted for it, in all.
        :param expected: how many of these will be accepted, in all.
        """
        load = self._loads.get(_size(batch))
        if drafted == 0:
            return False
        if load is None or not load.known:
            return True
        gain = load.gain_of(drafted / batch, expected / batch)
        load.gain += RATE * (gain - load.gain)
        worth = gain > 1 + MARGIN
        load.refused = 0 if worth else load.refused + 1
        if load.on != worth and (worth or (load.refused >= PATIENCE and load.gain < 1 - MARGIN)):
            load.on = worth
            load.probing = load.others = 0
            load.interval = FIRST_INTERVAL
            load.until_probe = load.next_probe
            self.turned_on += worth
            self.turned_off += not worth
        return worth or (not load.on and load.probing > 0)

    def break_even(self, batch: int, tokens: float, drafted: float) -> float | None:
        """The chance of being accepted at which one more drafted token costs what it gives; None while unknown.

        :param tokens: per request and step, `drafted`: of which drafted; means.
        """
        if self._fixed_cost > 0:
            return self._fixed_cost * tokens / (1 + self._fixed_cost * drafted)
        load = self._loads.get(_size(batch))
        if load is None or not load.known or load.slope is None:
            return None
        return load.slope * tokens / load.seconds(drafted)

    def timed(self, batch: int, drafted: int, seconds: float) -> None:
        """Learn from a finished step.

        :param batch: its requests; `drafted`: tokens drafted for it, in all.
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
        self._probe(load, other=load.on != (drafted > 0))

    def _probe(self, load: _Load, *, other: bool) -> None:
        """Decide after a step whether the `other` kind, which is not chosen, is to be measured."""
        load.others += other
        if load.probing > 0:
            load.probing -= other
            if load.probing > 0:
                return
        else:
            load.until_probe -= 1
            if load.until_probe > 0:
                return
            if load.others < PROBE_STEPS:
                load.probing = PROBE_STEPS
                load.others = 0
                self.probes += 1
                return
        load.others = 0
        load.until_probe = load.next_probe
        load.interval = min(2 * load.interval, LONGEST_INTERVAL) if load.known else FIRST_INTERVAL


def _size(batch: int) -> int:
    return max(0, batch - 1).bit_length()
