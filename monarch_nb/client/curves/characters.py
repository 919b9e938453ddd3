"""Curves drawn with characters, for terminals: lines in Braille dots, 2 × 4 of which make a character. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from monarch_nb.client.curves.scales import Scale, extents, short, ticks
from monarch_nb.client.curves.words import RunPictures, text, x_name
from monarch_nb.lines.pictures import Picture

WIDTH, HEIGHT = 80, 10
_GUTTER = 9
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Of a Braille character, by column and row."""
_COLOURS = (34, 33, 32, 35, 36, 31)
"""Of the runs, as ANSI names them; in the order of those of the picture."""
_DIM, _BAD = 2, 91

Drawn = Sequence[tuple[int, Picture]]
"""What is in one chart: the place of each curve's run, and the curve."""


def characters(runs: Sequence[RunPictures], *, width: int = WIDTH, colours: bool = False) -> str:
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
        x, y = Scale(*self.xs, 0, 2 * self.width - 1), Scale(*self.ys, 4 * HEIGHT - 1, 0)
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
        for row in range(HEIGHT):
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
