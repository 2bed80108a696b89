"""A chart of what ran where and when."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.charts.axes import RIGHT, WIDTH, round_values, short
from slipstream.core.charts.page import colour, escaped, legend
from slipstream.core.charts.spans import Span

_LEFT, _LANE = 130, 15


def gantt(spans: Sequence[Span], label: str) -> str:
    """Return the chart, its rows and colours in the order of their first spans.

    :param label: what it shows, for readers who cannot see it.
    """
    rows = list(dict.fromkeys(span.row for span in spans))
    groups = list(dict.fromkeys(span.group for span in spans))
    lanes = 1 + max((span.lane for span in spans), default=0)
    height = lanes * _LANE + 4
    begin, end = min((span.start for span in spans), default=0.0), max((span.end for span in spans), default=1.0)
    scale = (WIDTH - _LEFT - RIGHT) / max(end - begin, 1e-9)
    bottom = len(rows) * height
    drawn = [f'<path class="rule" d="M0 {i * height - 2}H{WIDTH}"/>' for i in range(1, len(rows))]
    for tick in round_values(begin, end, 8):
        if begin <= tick <= end:
            x = _LEFT + (tick - begin) * scale
            drawn.append(f'<path class="rule" d="M{x:.1f} 0V{bottom}"/>')
            drawn.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{short(tick, "s")}</text>')
    for place, row in enumerate(rows):
        drawn.append(f'<text x="0" y="{place * height + height / 2 + 2:.0f}">{escaped(row)}</text>')
    for span in spans:
        told = "".join(f", {name} {value}" for name, value in span.details.items())
        tip = escaped(f"{span.group}: {span.name}, {span.start:.1f} to {span.end:.1f} s{told}")
        y = rows.index(span.row) * height + span.lane * _LANE
        drawn.append(
            f'<rect x="{_LEFT + (span.start - begin) * scale:.1f}" y="{y}" '
            f'width="{max(0.6, (span.end - span.start) * scale):.1f}" height="{_LANE - 1}" '
            f'fill="{colour(groups.index(span.group))}" fill-opacity="{span.strength:.2f}"><title>{tip}</title></rect>'
        )
    return (
        f'{legend(groups)}<svg viewBox="0 0 {WIDTH} {bottom + 20}" role="img" aria-label="{escaped(label)}">'
        f"{''.join(drawn)}</svg>"
    )
