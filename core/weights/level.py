"""Which codec level a link should use: the one with the least time from trainer to engine."""

from __future__ import annotations

import logging
from typing import NamedTuple

from slipstream.triton_kernels import threads

logger = logging.getLogger(__name__)

_SMOOTHING = 0.5
_LEAST_BYTES = 1 << 20
"""Below this, latency and not bandwidth decides how long frames take."""
_LEAST_SECONDS = 0.02
"""Of predicted codec time. Below this, what a sync costs at any level decides how long a codec takes: levels that were
measured would lose to those that were not."""
_USUAL_DENSITY = 0.01


class LevelCost(NamedTuple):
    """What a level costs on one core and on the wire; see `benchmarks/sync` for how the figures were measured."""

    bits: float
    """Per change."""
    encode: tuple[float, float]
    """Seconds per element of the unit, and per change."""
    decode: tuple[float, float]


COSTS: dict[int, LevelCost] = {
    0: LevelCost(25.0, (0.0, 7e-9), (0.0, 6e-9)),
    1: LevelCost(10.5, (0.0, 23e-9), (0.0, 15e-9)),
    2: LevelCost(7.2, (0.11e-9, 16e-9), (0.22e-9, 29e-9)),
}
LEVELS = tuple(COSTS)
"""All codec levels."""


class LevelChooser:
    """Predicts the time of the next sync at each level from what the last ones took."""

    def __init__(self, cores: int | None = None) -> None:
        """Start without measurements, which means a link of unlimited bandwidth.

        Args:
            cores: that encode, and that decode; those of this process by default.
        """
        self._cores = cores or threads.workers()
        self._seconds_a_byte = 0.0
        self._changes: int | None = None
        self._slowness: dict[int, float] = {}  # level -> measured over predicted codec time
        self._bits: dict[int, float] = {}  # level -> measured bits a change
        self._last: int | None = None
        self._used: set[int] = set()

    def choose(self, elements: int, workers: int) -> int:
        """The level for a sync of a link of `elements` elements to `workers` workers; logged when it changes."""
        seconds = self.predict(elements, workers)
        best = min(seconds, key=lambda level: seconds[level])
        if best != self._last:
            table = ", ".join(f"level {level} {1e3 * cost:.1f} ms" for level, cost in seconds.items())
            rate = f"{1e-6 / self._seconds_a_byte:.0f} MB/s" if self._seconds_a_byte else "unlimited"
            logger.info("codec level %d (%s; bandwidth %s, %d cores)", best, table, rate, self._cores)
            self._last = best
        return best

    def predict(self, elements: int, workers: int) -> dict[int, float]:
        """Seconds by level: encode once, send to every worker over one uplink, decode on all at the same time."""
        changes = _USUAL_DENSITY * elements if self._changes is None else self._changes
        result = {}
        for level, cost in COSTS.items():
            codec = self._slowness.get(level, 1.0) * _codec_seconds(cost, elements, changes) / self._cores
            size = self._bits.get(level, cost.bits) * changes / 8
            result[level] = codec + size * workers * self._seconds_a_byte
        return result

    def observe_link(self, sent: int, seconds: float) -> None:
        """A worker waited `seconds` for `sent` bytes of frames."""
        if sent >= _LEAST_BYTES and seconds > 0:
            self._seconds_a_byte = _smooth(self._seconds_a_byte or None, seconds / sent)

    def observe_codec(self, level: int, elements: int, changes: int, size: int, seconds: float) -> None:
        """A delta of `changes` changes took `size` bytes, and encoding and decoding it took `seconds` in all.

        Nothing is learned of the codec from a delta without changes, or from too few bytes; nor of its speed from a
        short one, or from the first at a level, which may include compiling it.
        """
        self._changes = changes
        if level not in COSTS:  # a plugin's, which `choose` never takes
            return
        predicted = _codec_seconds(COSTS[level], elements, changes) / self._cores
        if changes and size >= _LEAST_BYTES:
            if level in self._used and predicted >= _LEAST_SECONDS:
                self._slowness[level] = _smooth(self._slowness.get(level), seconds / predicted)
            self._bits[level] = _smooth(self._bits.get(level), 8 * size / changes)
        if changes:
            self._used.add(level)


def _codec_seconds(cost: LevelCost, elements: int, changes: float) -> float:
    read, changed = (cost.encode[0] + cost.decode[0], cost.encode[1] + cost.decode[1])
    return read * elements + changed * changes


def _smooth(before: float | None, now: float) -> float:
    return now if before is None else _SMOOTHING * now + (1 - _SMOOTHING) * before
