"""The page around charts: style, tables, legends. It loads nothing and runs no script."""

from __future__ import annotations

import html
from collections.abc import Sequence

COLOURS = 8
"""Colours that charts tell series apart by; a ninth series has the first one's."""
SHADES = 8
"""Steps of the colour scale of a heat map."""

_STYLE = """
:root{color-scheme:light dark;--page:#fff;--ink:#1d2433;--faint:#667085;--rule:#e3e7ee;--card:#f6f8fb;--warn:#b45309;
--c0:#3b6fb6;--c1:#d0743c;--c2:#3f9a6b;--c3:#8a5fb0;--c4:#b8860b;--c5:#2a9d9d;--c6:#c0506f;--c7:#6b7280;
--h0:#eaf1fb;--h1:#cfe0f5;--h2:#aecbee;--h3:#86b1e3;--h4:#5b93d3;--h5:#3b75b9;--h6:#275894;--h7:#153a6b}
@media (prefers-color-scheme:dark){:root{--page:#12161d;--ink:#e6eaf2;--faint:#97a3b6;--rule:#2b3442;--card:#1a202a;
--warn:#f0b35a;--c0:#6fa0e6;--c1:#e8975f;--c2:#62c08e;--c3:#b38be0;--c4:#d9aa3c;--c5:#4cc3c3;--c6:#e57f9c;--c7:#9aa3b2;
--h0:#18222f;--h1:#1d3048;--h2:#234263;--h3:#2d5a87;--h4:#3d77ae;--h5:#5d97cf;--h6:#8bb9e6;--h7:#c5def7}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;padding:1.5rem 1.5rem 4rem;max-width:1080px;
background:var(--page);color:var(--ink)}
h1{font-size:1.5rem;margin:0}h2{font-size:1.15rem;margin:2.2rem 0 .4rem}h3{font-size:1rem;margin:1.4rem 0 .2rem}
p{margin:.3rem 0}.faint,caption{color:var(--faint)}a{color:var(--c0)}
table{border-collapse:collapse;margin:.6rem 0}td,th{padding:.25rem 1.4rem .25rem 0;text-align:left;
border-bottom:1px solid var(--rule);font-variant-numeric:tabular-nums}th{font-weight:600}
svg{display:block;width:100%;height:auto;margin:.3rem 0}
svg text{font:11px system-ui,sans-serif;fill:var(--faint)}
svg .rule{stroke:var(--rule)}svg .line{fill:none;stroke-width:1.8}svg .dashed{stroke-dasharray:5 4}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;font-size:.87rem;color:var(--faint)}
.legend i{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em}
.note{border-left:4px solid var(--warn);background:var(--card);padding:.5rem .9rem;margin:.5rem 0}
.note b{display:block}
details{margin-top:1.5rem}summary{cursor:pointer;font-weight:600}
"""


def escaped(text: object) -> str:
    """Return the text for use between tags and in attributes."""
    return html.escape(str(text))


def colour(index: int) -> str:
    """Return the CSS colour of a series."""
    return f"var(--c{index % COLOURS})"


def legend(names: Sequence[str]) -> str:
    """Return the names of series with their colours."""
    marks = (f'<span><i style="background:{colour(i)}"></i>{escaped(name)}</span>' for i, name in enumerate(names))
    return f'<div class="legend">{"".join(marks)}</div>'


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first row is its headings."""
    lines = (
        "<tr>" + "".join(f"<{tag}>{escaped(cell)}</{tag}>" for cell in row) + "</tr>"
        for tag, row in zip(["th"] + ["td"] * (len(rows) - 1), rows, strict=True)
    )
    return f"<table>{''.join(lines)}</table>"


def document(title: str, body: str) -> str:
    """Return the whole page.

    :param body: HTML, escaped already.
    """
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )
