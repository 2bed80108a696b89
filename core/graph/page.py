"""A schedule as one HTML page that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Sequence

from slipstream.core.graph.gantt import Bar

_COLOURS = ("#3b6fb6", "#c8553d", "#4f9d69", "#8a5fb0", "#b8860b", "#2a9d9d")
_ROW, _LEFT, _WIDTH = 26, 90, 1100
_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2em;color:#222}table{border-collapse:collapse}"
    "td,th{padding:.2em 1em .2em 0;text-align:left}svg text{font:11px system-ui,sans-serif}"
)


def page(title: str, head: Sequence[Sequence[str]], notes: Sequence[str], found: Sequence[Bar]) -> str:
    """Return the page: a table, notes, and a Gantt chart with a row a worker; decode is paler where its load is less.

    Args:
        head: rows of the table, the first one its headings.
    """
    pipelines = sorted({bar.pipeline for bar in found})
    workers = sorted({bar.worker for bar in found})
    end = max((bar.end for bar in found), default=1.0)
    scale = _WIDTH / end
    rows = []
    for bar in found:
        colour = _COLOURS[pipelines.index(bar.pipeline) % len(_COLOURS)]
        gang = bar.load is None
        y = workers.index(bar.worker) * _ROW + (_ROW // 2 if gang else 0)
        opacity = 1.0 if bar.load is None else 0.35 + 0.65 * bar.load
        tip = html.escape(
            f"{bar.pipeline}: {bar.kind}, step {bar.step}, {bar.start:.1f} to {bar.end:.1f} s, rate {bar.rate:.2f}"
        )
        rows.append(
            f'<rect x="{_LEFT + bar.start * scale:.1f}" y="{y}" width="{max(0.5, (bar.end - bar.start) * scale):.1f}" '
            f'height="{_ROW // 2 - 1}" fill="{colour}" fill-opacity="{opacity:.2f}"><title>{tip}</title></rect>'
        )
    labels = [f'<text x="0" y="{i * _ROW + _ROW // 2 + 4}">worker {w}</text>' for i, w in enumerate(workers)]
    height = len(workers) * _ROW + 20
    ticks = [f'<text x="{_LEFT + _WIDTH * i / 10:.0f}" y="{height - 4}">{end * i / 10:.0f} s</text>' for i in range(11)]
    legend = " ".join(
        f'<span style="color:{_COLOURS[i % len(_COLOURS)]}">&#9632; {html.escape(name)}</span>'
        for i, name in enumerate(pipelines)
    )
    table = "".join(
        "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"
        for tag, row in zip(["th"] + ["td"] * (len(head) - 1), head, strict=True)
    )
    told = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{html.escape(title)}</h1><table>{table}</table>{told}<p>{legend}; rollouts above, gang stages below</p>"
        f'<svg width="{_LEFT + _WIDTH + 60}" height="{height}">{"".join([*labels, *rows, *ticks])}</svg></html>'
    )
