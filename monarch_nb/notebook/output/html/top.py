"""Where ranks spend their time, as HTML: a bar for each row of the table, and the same in words."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from monarch_nb.client.instruments.top_table import Shares, TopTable

_CELL = "text-align:left;padding:2px 14px 2px 0;vertical-align:top;border:0;background:none;white-space:nowrap"
_MUTED = "color:var(--jp-ui-font-color2,#666)"
_LATE = "color:var(--jp-warn-color0,#b25000)"
_COLOURS = {
    "torch": "var(--jp-brand-color1,#1976d2)",
    "python": "var(--jp-success-color1,#2e7d32)",
    "loader": "var(--jp-warn-color1,#f57c00)",
    "waiting": "var(--jp-error-color1,#c62828)",
    "breakpoint": "var(--jp-ui-font-color1,#212121)",
    "collective": "var(--jp-border-color0,#aaa)",
    "idle": "transparent",
}
_BAR_WIDTH = "310px"
"""The words below a bar have one line: else rows would jump while the table is live."""
_FIGURES = ("steps/s", "memory", "CPU", "GPU")


def top_markup(found: TopTable, notes: Iterable[str]) -> str:
    """Return the table, with who is waited for above it."""
    texts = [row.texts() for row in found.rows]
    figures = [name for name in _FIGURES if any(text[name] for text in texts)]
    head = _row("th", [*map(html.escape, ("rank", "node", "the last seconds", *figures, "where mostly"))], _MUTED)
    body = ""
    for row, text in zip(found.rows, texts, strict=True):
        cells = [f"<b>{html.escape(text['rank'])}</b>", html.escape(text["node"]), _bar(row.shares())]
        cells += [html.escape(text[name]) for name in (*figures, "where mostly")]
        body += _row("td", cells, _LATE if row.is_late else "")
    said = "".join(f'<div style="{_MUTED};font-size:90%">{html.escape(note)}</div>' for note in notes)
    return (
        f'<div style="{_LATE if found.straggler else _MUTED}"><b>{html.escape(found.sentence)}</b></div>'
        f'<div style="overflow-x:auto"><table style="margin:4px 0;border-collapse:collapse;border:0;font-size:90%">'
        f"{head}{body}</table></div>{said}"
    )


def _row(kind: str, cells: Sequence[str], style: str) -> str:
    first = f"{_CELL};{style}"
    weight = ";font-weight:normal" if kind == "th" else ""
    styles = [first, *([_CELL if kind == "td" else first] * (len(cells) - 1))]
    return (
        "<tr>" + "".join(f'<{kind} style="{s}{weight}">{cell}</{kind}>' for s, cell in zip(styles, cells, strict=True))
    ) + "</tr>"


def _bar(shares: Sequence[Shares]) -> str:
    parts = "".join(
        f'<span style="width:{each.share:.1%};background:{_COLOURS.get(each.kind, "#888")}"></span>' for each in shares
    )
    words = " · ".join(each.words for each in shares)
    return (
        f'<div style="display:flex;width:{_BAR_WIDTH};height:9px;margin-top:3px;overflow:hidden;'
        f'background:var(--jp-layout-color2,#eee)">{parts}</div>'
        f'<div style="{_MUTED};font-size:90%;width:{_BAR_WIDTH};overflow:hidden;text-overflow:ellipsis" '
        f'title="{html.escape(words)}">{html.escape(words)}</div>'
    )
