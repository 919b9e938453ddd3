"""Charts of curves: as SVG, or drawn with characters, with the round numbers beside them. Pure."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from monarch_nb.client.curves.words import RunPictures, number, text, x_name
from monarch_nb.lines.pictures import Picture


@dataclass(frozen=True)
class Scale:
    """From numbers to places in the picture."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a number."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def extents(pictures: Sequence[Picture]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return between which numbers curves are, on both axes."""
    bands = [part for picture in pictures for part in picture.band if part is not None]
    xs = [x for picture in pictures for x in (*picture.xs, *(at for at, _ in picture.marks))]
    ys = [y for picture in pictures for y in picture.ys]
    xs += [x for x, _, _ in bands]
    ys += [y for _, low, high in bands for y in (low, high)]
    return _extent(xs, 0.0), _extent(ys, 0.06)


def _extent(values: Sequence[float], margin: float) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high <= low:
        size = abs(low) * 0.1 or 1.0
        return low - size, high + size
    return low - margin * (high - low), high + margin * (high - low)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers between two.

    Example:
        >>> ticks(0.0, 9.7, 5)
        [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    raw = (high - low) / most
    if not math.isfinite(raw) or raw <= 0:
        return []
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [tick * step for tick in range(first, min(last, first + 2 * most) + 1)]


def short(value: float) -> str:
    """Return a number in few characters.

    Example:
        >>> short(12500.0), short(2e9), short(0.00004), short(0.30000000000000004)
        ('12.5k', '2G', '4e-05', '0.3')
    """
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size <= abs(value) < 1e15:
            return f"{value / (1e3 if letter == 'k' else size):.5g}{letter}"
    return f"{value:.4g}"


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


COLUMNS, ROWS = 80, 10
_GUTTER = 9
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Of a Braille character, by column and row."""
_COLOURS = (34, 33, 32, 35, 36, 31)
"""Of the runs, as ANSI names them; in the order of those of the picture."""
_DIM, _BAD = 2, 91

Drawn = Sequence[tuple[int, Picture]]
"""What is in one chart: the place of each curve's run, and the curve."""


def characters(runs: Sequence[RunPictures], *, width: int = COLUMNS, colours: bool = False) -> str:
    """Return charts below each other, and the last values.

    Args:
        width: of a line, in characters.
        colours: runs over each other have a colour each; without, each run has a chart of its own.
    """
    names = dict.fromkeys(picture.name for run in runs for picture in run.pictures)
    parts = []
    for name in names:
        drawn = [(index, picture) for index, run in enumerate(runs) for picture in run.pictures if picture.name == name]
        limits = extents([picture for _, picture in drawn])
        for together in [drawn] if colours or len(drawn) == 1 else [[each] for each in drawn]:
            who = ", ".join(_coloured(runs[index].title, _COLOURS[index % 6], colours) for index, _ in together)
            parts += _Chart(together, *limits, max(24, width - _GUTTER), colours).lines(f"{name}  {who}")
    return "\n".join([*parts, text(runs)])


@dataclass
class _Chart:
    """A chart on a grid of characters."""

    drawn: Drawn
    xs: tuple[float, float]
    ys: tuple[float, float]
    width: int
    colours: bool
    dots: dict[tuple[int, int], int] = field(default_factory=dict)
    """Of a line, by column and row."""
    owners: dict[tuple[int, int], int] = field(default_factory=dict)
    """The place of the run that has drawn last there."""
    shaded: set[tuple[int, int]] = field(default_factory=set)

    def lines(self, title: str) -> list[str]:
        """Return it line by line."""
        x, y = Scale(*self.xs, 0, 2 * self.width - 1), Scale(*self.ys, 4 * ROWS - 1, 0)
        bad = set()
        for index, picture in self.drawn:
            self._shade(picture, x, y)
            self._draw(
                index, [(round(x(at)), round(y(value))) for at, value in zip(picture.xs, picture.ys, strict=True)]
            )
            bad |= {round(x(at)) // 2 for at, _ in picture.marks}
        found = [f"{'':{_GUTTER}}{title}"]
        if bad:
            teeth = "".join("▼" if column in bad else " " for column in range(self.width)).rstrip()
            found.append(f"{'':{_GUTTER}}{_coloured(teeth, _BAD, self.colours)} nan or inf")
        labels = {round(y(tick)) // 4: short(tick) for tick in ticks(*self.ys, 4)}
        for row in range(ROWS):
            edge = "┤" if row in labels else "│"
            found.append(f"{labels.get(row, ''):>{_GUTTER - 2}} {edge}{self._row(row)}".rstrip())
        return [*found, *self._below(x)]

    def _shade(self, picture: Picture, x: Scale, y: Scale) -> None:
        before = None
        for part in picture.band:
            if part is not None:
                at = round(x(part[0])) // 2
                rows = range(round(y(part[2])) // 4, round(y(part[1])) // 4 + 1)
                columns = range(at if before is None else min(before + 1, at), at + 1)
                self.shaded |= {(column, row) for column in columns for row in rows}
                before = at
            else:
                before = None

    def _draw(self, index: int, points: Sequence[tuple[int, int]]) -> None:
        for start, end in zip(points, points[1:] or points, strict=False):
            for across, down in _between(start, end):
                place = across // 2, down // 4
                self.dots[place] = self.dots.get(place, 0) | _DOTS[across % 2][down % 4]
                self.owners[place] = index

    def _row(self, row: int) -> str:
        return "".join(self._character((column, row)) for column in range(self.width))

    def _character(self, place: tuple[int, int]) -> str:
        if dots := self.dots.get(place):
            return _coloured(chr(0x2800 + dots), _COLOURS[self.owners[place] % 6], self.colours)
        return _coloured("░", _DIM, self.colours) if place in self.shaded else " "

    def _below(self, x: Scale) -> list[str]:
        axis, labels = ["─"] * self.width, [" "] * (self.width + _GUTTER)
        for tick in ticks(*self.xs, max(2, self.width // 12)):
            column, label = round(x(tick)) // 2, short(tick)
            axis[column] = "┬"
            start = min(max(0, column + _GUTTER - len(label) // 2), len(labels) - len(label))
            labels[start : start + len(label)] = label
        name = x_name(self.drawn[0][1].x)
        return [f"{'':{_GUTTER - 1}}└{''.join(axis)}", f"{''.join(labels).rstrip()}  {name}", ""]


def _between(start: tuple[int, int], end: tuple[int, int]) -> Iterable[tuple[int, int]]:
    """Yield the dots of a line from one to another."""
    across, down = end[0] - start[0], end[1] - start[1]
    steps = max(abs(across), abs(down), 1)
    return (
        (start[0] + round(across * step / steps), start[1] + round(down * step / steps)) for step in range(steps + 1)
    )


def _coloured(text: str, colour: int, colours: bool) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if colours and text.strip() else text
