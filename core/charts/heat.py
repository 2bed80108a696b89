"""A chart of one quantity over rows and steps, by colour."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slipstream.core.charts.axes import RIGHT, WIDTH, binned, mean_of, short
from slipstream.core.charts.page import SHADES, escaped

_LEFT, _MOST_ROWS, _LABELS = 190, 64, 32


def heat_map(steps: Sequence[int], rows: Sequence[tuple[str, Sequence[float | None]]], unit: str, label: str) -> str:
    """Return the chart; its colours are equal ratios of the values, as far apart as these are.

    :param rows: name and values, one a step; None where there is none. Many rows are drawn as means of neighbours.
    :param unit: see `series`.
    :param label: what it shows, for readers who cannot see it.
    """
    names = [name for name, _ in rows]
    shown, values = binned(steps, [each for _, each in rows])
    group = -(-len(rows) // _MOST_ROWS)
    if group > 1:
        values = [
            [mean_of(column) for column in zip(*values[start : start + group], strict=True)]
            for start in range(0, len(values), group)
        ]
        names = [
            f"{part[0]} .. {part[-1]}" if len(part) > 1 else part[0]
            for part in (names[start : start + group] for start in range(0, len(names), group))
        ]
    known = [value for row in values for value in row if value]
    low, high = min(known, default=1.0), max(known, default=1.0)
    ratio = max(high / low, 1.0001)
    height = max(7, min(18, 560 // max(1, len(values))))
    column = (WIDTH - _LEFT - RIGHT) / max(1, len(shown))
    cells: list[list[str]] = [[] for _ in range(SHADES)]
    drawn = []
    for line, (name, row) in enumerate(zip(names, values, strict=True)):
        y = line * height
        for index, value in enumerate(row):
            if value:
                shade = min(SHADES - 1, int(SHADES * math.log(value / low) / math.log(ratio)))
                cells[shade].append(
                    f"M{_LEFT + index * column:.1f} {y}h{column + 0.3:.1f}v{height}h-{column + 0.3:.1f}z"
                )
        mean = mean_of(row)
        if line % -(-len(values) // _LABELS) == 0:
            shortened = name if len(name) <= 30 else f"…{name[-29:]}"
            drawn.append(
                f'<text x="{_LEFT - 8}" y="{y + height / 2 + 4:.1f}" text-anchor="end">{escaped(shortened)}</text>'
            )
        told = "none" if mean is None else short(mean, unit)
        drawn.append(
            f'<rect x="0" y="{y}" width="{WIDTH}" height="{height}" fill-opacity="0">'
            f"<title>{escaped(name)}: {told}, mean</title></rect>"
        )
    paths = [f'<path d="{"".join(each)}" fill="var(--h{shade})"/>' for shade, each in enumerate(cells) if each]
    end = len(values) * height
    ticks = [
        f'<text x="{_LEFT + (index + 0.5) * column:.1f}" y="{end + 15}" text-anchor="middle">{shown[index]}</text>'
        for index in range(0, len(shown), -(-len(shown) // 12) or 1)
    ]
    edges = [low * ratio ** (shade / SHADES) for shade in range(SHADES)]
    marks = "".join(
        f'<span><i style="background:var(--h{shade})"></i>{short(edge, unit)}</span>'
        for shade, edge in enumerate(edges)
    )
    return (
        f'<div class="legend"><span>from</span>{marks}</div><svg viewBox="0 0 {WIDTH} {end + 20}" role="img" '
        f'aria-label="{escaped(label)}">{"".join([*paths, *ticks, *drawn])}</svg>'
    )
