"""Axes: round numbers, positions, and the lines and labels of a chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1000, 210, 62, 12, 10, 24
"""Of a chart, in units of its view box, and its margins."""
MOST_COLUMNS = 160
"""Steps that a chart shows one by one; more are drawn as means of neighbours."""


@dataclass(frozen=True)
class Scale:
    """From values to positions; `low` < `high`."""

    low: float
    high: float
    bottom: float
    top: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        return self.bottom + (value - low) / (high - low) * (self.top - self.bottom)

    def ticks(self) -> list[float]:
        """Return the values to label."""
        if not self.logarithmic:
            return round_values(self.low, self.high)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        found = [10.0**power for power in range(first, last + 1) if self.low <= 10.0**power <= self.high]
        return found[:: max(1, len(found) // 5)]


def value_scale(values: Sequence[float], logarithmic: bool = False, height: int = HEIGHT) -> Scale:
    """Return the vertical scale of a chart of these values: from 0, or logarithmic in whole powers of ten."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not logarithmic)]
    if logarithmic:
        low = 10.0 ** math.floor(math.log10(min(known, default=1.0)))
        high = 10.0 ** math.ceil(math.log10(max(known, default=10.0)))
        high = max(high, 10 * low)
    else:
        low, high = min(0.0, min(known, default=0.0)), max(known, default=1.0)
        high = round_values(low, high)[-1] if high > low else low + 1.0
    return Scale(low, high, height - BOTTOM, TOP, logarithmic)


def round_values(low: float, high: float, count: int = 4) -> list[float]:
    """Return about `count` round numbers; the last is not below `high`."""
    span = (high - low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(span))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= span * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, max(last, first + 1) + 1)]


def binned(
    steps: Sequence[int], values: Sequence[Sequence[float | None]]
) -> tuple[list[int], list[list[float | None]]]:
    """Return steps and series as they are, or means over equal stretches of them where there are too many.

    :param values: of each series, one a step; None where a series has none.
    """
    width = -(-len(steps) // MOST_COLUMNS)
    if width <= 1:
        return list(steps), [list(series) for series in values]
    return list(steps[::width]), [
        [mean_of(series[start : start + width]) for start in range(0, len(steps), width)] for series in values
    ]


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are there."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def short(value: float, unit: str = "") -> str:
    """Return a number with its unit: ``3.2 MB``, ``45 %``, ``0.02 s``."""
    if unit == "B":
        for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}"
        return f"{value:.0f} B"
    if unit == "%":
        value *= 100
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def frame(scale: Scale, unit: str, steps: Sequence[int], column: float, height: int = HEIGHT) -> list[str]:
    """Return the rules and labels of a chart whose columns are steps."""
    drawn = []
    for tick in scale.ticks():
        y = scale.at(tick)
        drawn.append(f'<path class="rule" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(tick, unit)}</text>')
    for index in range(0, len(steps), -(-len(steps) // 12) or 1):
        x = LEFT + (index + 0.5) * column
        drawn.append(f'<text x="{x:.1f}" y="{height - 7}" text-anchor="middle">{steps[index]}</text>')
    return drawn
