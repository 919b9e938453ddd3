"""How a cell scales, as a picture: static SVG whose colours can be read on light and on dark ground. Pure."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence

from monarch_nb.client.scaling.report import ScalingReport, ScalingRow, number, seconds

_WIDTH, _HEIGHT = 270, 168
_LEFT, _RIGHT, _TOP, _BOTTOM = 26, 34, 40, 28
_BAR_CHARACTERS = 20
_MOST_LABELS = 6
_TEXT, _LINE, _IDEAL = "#7d828a", "#3f88d4", "#9a9fa6"

Point = tuple[float, float]


def curve(report: ScalingReport) -> str:
    """Return SVG of throughput (or time) and efficiency against ranks; empty for fewer than two sizes."""
    rows = _drawn(report)
    if len(rows) < 2:
        return ""
    left = _Panel(0, rows, report.unit or "time", _amount, number if report.unit else seconds, _spread)
    right = _Panel(_WIDTH, rows, "efficiency", lambda row: row.efficiency or 0.0, _percent, _no_spread)
    body = left.logarithmic(_ideal(report, rows)) + right.from_zero()
    alternative = html.escape("; ".join(f"{row.ranks}: {_percent(row.efficiency or 0)}" for row in rows))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * _WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {2 * _WIDTH} {_HEIGHT}" role="img" font-family="system-ui,sans-serif" font-size="11" '
        f'fill="{_TEXT}"><title>efficiency by ranks: {alternative}</title>{body}</svg>'
    )


def bars(report: ScalingReport) -> str:
    """Return the efficiencies as bars of text; empty for fewer than two sizes."""
    rows = _drawn(report)
    if len(rows) < 2:
        return ""
    width = max(len(str(row.ranks)) for row in rows)
    most = max(1.0, *(row.efficiency or 0.0 for row in rows))
    lines = ["efficiency"]
    for row in rows:
        filled = round((row.efficiency or 0.0) / most * _BAR_CHARACTERS)
        bar = "█" * filled + "░" * (_BAR_CHARACTERS - filled)
        lines.append(f"  {row.ranks:>{width}}  {bar} {_percent(row.efficiency or 0.0)}")
    return "\n".join(lines)


def _drawn(report: ScalingReport) -> list[ScalingRow]:
    return [row for row in report.rows if row.efficiency is not None]


def _amount(row: ScalingRow) -> float:
    value = row.throughput if row.throughput is not None else row.time_s
    return value or 0.0


def _spread(row: ScalingRow) -> Sequence[float]:
    return row.throughputs or row.times_s


def _no_spread(_: ScalingRow) -> Sequence[float]:
    return ()


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _ideal(report: ScalingReport, rows: Sequence[ScalingRow]) -> list[float]:
    """Return what each size would have at an efficiency of 1."""
    first = rows[0]
    shares = [row.ranks / first.ranks for row in rows]
    if report.unit:
        return [_amount(first) * share for share in shares]
    return [_amount(first) / (1 if report.is_weak else share) for share in shares]


class _Panel:
    """One of the two pictures: a value against ranks, which are as far apart as their logarithms."""

    def __init__(
        self,
        left: int,
        rows: Sequence[ScalingRow],
        title: str,
        value: Callable[[ScalingRow], float],
        label: Callable[[float], str],
        spread: Callable[[ScalingRow], Sequence[float]],
    ) -> None:
        self._left, self._rows, self._title = left, rows, title
        self._values = [value(row) for row in rows]
        self._label, self._spread = label, spread
        logarithms = [math.log2(row.ranks) for row in rows]
        width = _WIDTH - _LEFT - _RIGHT
        share = [(each - logarithms[0]) / (logarithms[-1] - logarithms[0]) for each in logarithms]
        self._xs = [left + _LEFT + width * each for each in share]

    def logarithmic(self, ideal: Sequence[float]) -> str:
        """Return it with a scale on which the ideal is a straight line."""
        spreads = [[value for value in self._spread(row) if value > 0] for row in self._rows]
        all_values = [*self._values, *ideal, *(value for values in spreads for value in values)]
        least, most = math.log(min(all_values)), math.log(max(all_values))
        height = _HEIGHT - _TOP - _BOTTOM

        def y(value: float) -> float:
            return _HEIGHT - _BOTTOM - height * (math.log(value) - least) / ((most - least) or 1.0)

        whiskers = "".join(
            f'<path d="M{x:.1f} {y(min(values)):.1f}V{y(max(values)):.1f}" stroke="{_LINE}" stroke-width="5" '
            'stroke-opacity="0.35"/>'
            for x, values in zip(self._xs, spreads, strict=True)
            if len(values) > 1
        )
        return self._drawn(_points(self._xs, map(y, self._values)), _points(self._xs, map(y, ideal)), whiskers)

    def from_zero(self) -> str:
        """Return it with a scale from 0 to 1, or more if need be; ideal is 1."""
        most = max(1.0, *self._values)
        height = _HEIGHT - _TOP - _BOTTOM

        def y(value: float) -> float:
            return _HEIGHT - _BOTTOM - height * value / most

        return self._drawn(_points(self._xs, map(y, self._values)), _points(self._xs, [y(1.0)] * len(self._xs)), "")

    def _drawn(self, points: Sequence[Point], ideal: Sequence[Point], whiskers: str) -> str:
        base = _HEIGHT - _BOTTOM
        end = self._left + _WIDTH - _RIGHT
        labelled = set(range(len(points))) if len(points) <= _MOST_LABELS else {0, len(points) - 1}
        parts = [
            f'<text x="{self._left + 6}" y="12" font-weight="600">{html.escape(self._title)} by ranks</text>',
            f'<path d="M{self._left + _LEFT} {base}H{end}" stroke="{_IDEAL}" stroke-opacity="0.5"/>',
            f'<path d="{_path(ideal)}" fill="none" stroke="{_IDEAL}" stroke-dasharray="4 4"/>',
            whiskers,
            f'<path d="{_path(points)}" fill="none" stroke="{_LINE}" stroke-width="2"/>',
        ]
        for index, ((x, y), row, value) in enumerate(zip(points, self._rows, self._values, strict=True)):
            said = html.escape(f"{row.ranks}: {self._label(value)}")
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{_LINE}"><title>{said}</title></circle>')
            if index in labelled:
                parts.append(_text(x, y - 8, self._label(value)) + _text(x, base + 15, str(row.ranks)))
        return "".join(parts)


def _points(xs: Iterable[float], ys: Iterable[float]) -> list[Point]:
    return list(zip(xs, ys, strict=True))


def _path(points: Iterable[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{html.escape(text)}</text>'
