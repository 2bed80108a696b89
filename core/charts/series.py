"""Charts of values a step: stacked bars and lines."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from slipstream.core.charts.axes import HEIGHT, LEFT, RIGHT, TOP, WIDTH, binned, frame, short, value_scale
from slipstream.core.charts.page import colour, escaped, legend

_OUTLIER: Final = 4.0
"""Times the median from which a bar is cut at the top of the chart, with its value beside it."""

Series = tuple[str, Sequence[float | None]]
"""A name and its values, one a step; None where there is none."""


def stacked_bars(steps: Sequence[int], series: Sequence[Series], unit: str, label: str) -> str:
    """Return a chart with a bar a step, the parts on top of one another; few very high bars are cut and labelled.

    :param unit: ``s``, ``B``, ``%`` (of shares from 0 to 1) or empty.
    :param label: what it shows, for readers who cannot see it.
    """
    names = [name for name, _ in series]
    shown, values = binned(steps, [each for _, each in series])
    totals = [sum(part[index] or 0.0 for part in values) for index in range(len(shown))]
    # A first step that compiles, a sync that sends everything: the others would be flat beside it.
    usual = statistics.median(totals) if totals else 0.0
    scale = value_scale([total for total in totals if total <= _OUTLIER * usual] if usual else totals)
    column = (WIDTH - LEFT - RIGHT) / max(1, len(shown))
    drawn = frame(scale, unit, shown, column)
    width = min(column * 0.8, 46)
    for index, step in enumerate(shown):
        base = 0.0
        parts = "".join(
            f"\n{name}: {short(part[index] or 0.0, unit)}" for name, part in zip(names, values, strict=True)
        )
        drawn.append(f"<g><title>step {step}: {short(totals[index], unit)}{escaped(parts)}</title>")
        for place, part in enumerate(values):
            value = part[index] or 0.0
            top, bottom = (scale.at(min(each, scale.high)) for each in (base + value, base))
            if bottom - top > 0.05:
                drawn.append(
                    f'<rect x="{LEFT + (index + 0.5) * column - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
                    f'height="{bottom - top:.1f}" fill="{colour(place)}"/>'
                )
            base += value
        if totals[index] > scale.high:
            x = LEFT + (index + 0.5) * column + width / 2 + 4
            drawn.append(f'<text x="{x:.1f}" y="{TOP + 9}">&#8593; {short(totals[index], unit)}</text>')
        drawn.append("</g>")
    return legend(names) + _svg(drawn, label)


def lines(steps: Sequence[int], series: Sequence[Series], unit: str, label: str, logarithmic: bool = False) -> str:
    """Return a chart with a line for each series; arguments as of `stacked_bars`."""
    shown, values = binned(steps, [each for _, each in series])
    scale = value_scale([value for part in values for value in part if value is not None], logarithmic)
    column = (WIDTH - LEFT - RIGHT) / max(1, len(shown))
    drawn = frame(scale, unit, shown, column)
    for place, ((name, _), part) in enumerate(zip(series, values, strict=True)):
        path, pen = [], "M"
        for index, value in enumerate(part):
            if value is None or (logarithmic and value <= 0):
                pen = "M"
                continue
            path.append(f"{pen}{LEFT + (index + 0.5) * column:.1f} {scale.at(value):.1f}")
            pen = "L"
            drawn.append(
                f'<circle cx="{LEFT + (index + 0.5) * column:.1f}" cy="{scale.at(value):.1f}" r="2.4" '
                f'fill="{colour(place)}"><title>{escaped(name)}, step {shown[index]}: {short(value, unit)}</title>'
                "</circle>"
            )
        drawn.append(f'<path class="line" d="{"".join(path)}" stroke="{colour(place)}"/>')
    return legend([name for name, _ in series]) + _svg(drawn, label)


def _svg(drawn: Sequence[str], label: str, height: int = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escaped(label)}">{"".join(drawn)}</svg>'
