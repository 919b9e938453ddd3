"""Curves as an SVG picture without any library: bounded in size, light and dark, readable where styles are stripped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from monarch_nb.client.curves.scales import Scale, extents, short, ticks
from monarch_nb.client.curves.words import RunPictures, number, x_name
from monarch_nb.lines.pictures import Picture

WIDTH, CHART_HEIGHT = 680, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 30, 34
_ROW = 18
MAX_BYTES = 90_000
"""Of all lines and bands together, about."""
_COLUMN_BYTES = 80
COLOURS = ("#2f7fc1", "#d9730d", "#2e9e5b", "#a855a0", "#9a8200", "#c0504d")
"""Of the runs: they can be told apart on light and on dark ground."""
_LIGHT = {"back": "#ffffff", "text": "#212121", "dim": "#616161", "grid": "#e0e0e0", "bad": "#c62828"}
_DARK = {"back": "#111111", "text": "#e0e0e0", "dim": "#a8a8a8", "grid": "#3a3a3a", "bad": "#ef5350"}
_LABS = {
    "back": "--jp-layout-color0",
    "text": "--jp-content-font-color1",
    "dim": "--jp-content-font-color2",
    "grid": "--jp-border-color2",
    "bad": "--jp-error-color1",
}
_FONT = "var(--jp-ui-font-family,system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif)"


def svg(runs: Sequence[RunPictures]) -> str:
    """Return the picture: a chart for each name, with a line and a band for each run."""
    names = list(dict.fromkeys(picture.name for run in runs for picture in run.pictures))
    notes = [f"{run.title}: {note}" if len(runs) > 1 else note for run in runs for note in run.notes]
    lines = sum(len(run.pictures) for run in runs)
    columns = max(24, min(300, MAX_BYTES // _COLUMN_BYTES // max(1, lines)))
    height = 8 + _ROW + CHART_HEIGHT * len(names) + _ROW * len(notes)
    title = ", ".join(names)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="mnb-curves" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="{html.escape(f"Curves of {title}")}" '
        f'style="max-width:100%;height:auto" font-size="12" font-family="{_FONT}">'
    )
    parts = [
        opening,
        f"<style>{_style()}</style>",
        f'<rect class="b" width="{WIDTH}" height="{height}" fill="{_LIGHT["back"]}"/>',
        *_heading(runs),
    ]
    for place, name in enumerate(names):
        drawn = [(index, picture) for index, run in enumerate(runs) for picture in run.pictures if picture.name == name]
        parts.append(f'<g transform="translate(0 {8 + _ROW + place * CHART_HEIGHT})">')
        parts += _chart(name, drawn, columns)
        parts.append("</g>")
    for place, note in enumerate(notes):
        parts.append(_text(8, height - 8 - _ROW * (len(notes) - 1 - place), note, "d"))
    return "".join([*parts, "</svg>"])


def _style() -> str:
    def variables(colours: dict[str, str]) -> str:
        return "".join(f"--mnb-{name}:{colour};" for name, colour in colours.items())

    def colour(name: str) -> str:
        return f"var({_LABS[name]},var(--mnb-{name}))"

    return (
        f".mnb-curves{{{variables(_LIGHT)}}}"
        f"@media(prefers-color-scheme:dark){{.mnb-curves{{{variables(_DARK)}}}}}"
        f".mnb-curves .b{{fill:{colour('back')}}}.mnb-curves .t{{fill:{colour('text')}}}"
        f".mnb-curves .d{{fill:{colour('dim')}}}.mnb-curves .g{{stroke:{colour('grid')}}}"
        f".mnb-curves .o{{fill:{colour('bad')}}}"
    )


def _text(x: float, y: float, text: str, kind: str = "t", anchor: str = "start", extra: str = "") -> str:
    colour = _LIGHT["text" if kind == "t" else "dim"]
    return (
        f'<text class="{kind}" x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="{anchor}"{extra}>'
        f"{html.escape(text)}</text>"
    )


def _heading(runs: Sequence[RunPictures]) -> Iterable[str]:
    x = 8.0
    for index, run in enumerate(runs):
        colour = COLOURS[index % len(COLOURS)]
        yield f'<rect x="{x:g}" y="9" width="14" height="4" rx="2" fill="{colour}"/>'
        yield _text(x + 20, 16, run.title, "d")
        x += 40 + 6.6 * len(run.title)


def _chart(name: str, drawn: Sequence[tuple[int, Picture]], columns: int) -> Iterable[str]:
    xs, ys = extents([picture for _, picture in drawn])
    x = Scale(*xs, _LEFT, WIDTH - _RIGHT)
    y = Scale(*ys, CHART_HEIGHT - _BOTTOM, _TOP)
    unit = drawn[0][1].unit
    yield _text(8, 16, f"{name} ({unit})" if unit and f"({unit})" not in name else name, extra=' font-weight="600"')
    yield _text(WIDTH - _RIGHT, 16, " · ".join(_last(picture) for _, picture in drawn), "d", "end")
    for tick in ticks(*ys, 4):
        yield f'<path class="g" d="M{_LEFT} {y(tick):.1f}H{WIDTH - _RIGHT}" stroke="{_LIGHT["grid"]}" fill="none"/>'
        yield _text(_LEFT - 6, y(tick) + 4, short(tick), "d", "end", ' font-size="11"')
    for tick in ticks(*xs, 6):
        yield _text(x(tick), CHART_HEIGHT - _BOTTOM + 15, short(tick), "d", "middle", ' font-size="11"')
    yield _text((WIDTH + _LEFT) / 2, CHART_HEIGHT - 4, x_name(drawn[0][1].x), "d", "middle", ' font-size="11"')
    for index, picture in drawn:
        colour = COLOURS[index % len(COLOURS)]
        for area in _areas(picture, x, y, columns):
            yield f'<path d="{area}" fill="{colour}" fill-opacity="0.22" stroke="none"/>'
        if picture.xs:
            path = _path(_thinned(picture.xs, picture.ys, x, y, columns))
            yield (
                f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6" stroke-linejoin="round" '
                'stroke-linecap="round"/>'
            )
        for at, what in picture.marks:
            yield (
                f'<path class="o" d="M{x(at):.1f} {_TOP}l-4 -7h8z" fill="{_LIGHT["bad"]}">'
                f"<title>{html.escape(f'{what} at {x_name(picture.x)} {number(at)}')}</title></path>"
            )


def _last(picture: Picture) -> str:
    return number(picture.first.value, "" if picture.unit != "%" else "%") if picture.first else ""


def _thinned(xs: Sequence[float], ys: Sequence[float], x: Scale, y: Scale, columns: int) -> list[tuple[float, float]]:
    """Return places of a line: in each column of the picture the first, the least, the greatest and the last."""
    size = (x.end - x.start) / columns
    found: list[tuple[float, float]] = []
    column: list[tuple[float, float]] = []
    place = -1
    for each in zip(map(x, xs), map(y, ys), strict=True):
        at = int((each[0] - x.start) / size)
        if at != place:
            found += _corners(column)
            column, place = [], at
        column.append(each)
    return found + _corners(column)


def _corners(column: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(column) <= 4:
        return list(column)
    chosen = {0, len(column) - 1}
    chosen |= {by(range(len(column)), key=lambda place: column[place][1]) for by in (min, max)}
    return [column[place] for place in sorted(chosen)]


def _path(points: Sequence[tuple[float, float]]) -> str:
    if len(points) == 1:  # a dot
        return f"M{points[0][0]:.1f} {points[0][1]:.1f}h0.1"
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _areas(picture: Picture, x: Scale, y: Scale, columns: int) -> Iterable[str]:
    part: list[tuple[float, float, float]] = []
    size = (x.end - x.start) / columns
    for each in (*picture.band, None):
        if each is None:
            if part:
                yield _area(part)
            part = []
            continue
        at, low, high = x(each[0]), y(each[1]), y(each[2])
        if part and at - part[-1][0] < size:
            part[-1] = part[-1][0], max(low, part[-1][1]), min(high, part[-1][2])
        else:
            part.append((at, low, high))


def _area(part: Sequence[tuple[float, float, float]]) -> str:
    if len(part) == 1:
        [(at, low, high)] = part
        part = [(at - 1, low, high), (at + 1, low, high)]
    above = "L".join(f"{at:.1f} {high:.1f}" for at, _, high in part)
    below = "L".join(f"{at:.1f} {low:.1f}" for at, low, _ in reversed(part))
    return f"M{above}L{below}Z"
