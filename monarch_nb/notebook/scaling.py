"""A series of runs in its cell: rows as a table that grows, the curve below it, and what the present run prints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.curves.pictures import svg
from monarch_nb.client.curves.words import RunPictures
from monarch_nb.client.meshes.scaling_report import ScalingReport, ScalingRow
from monarch_nb.errors import MonarchNbError
from monarch_nb.lines.pictures import Picture, Point
from monarch_nb.notebook.output.publishing import displaying, printing
from monarch_nb.notebook.output.tables import Shown, calm_line, is_notebook, show, table
from monarch_nb.notebook.output.view import Publish

_BAR_CHARACTERS = 20
_EMPTY = {"text/html": "", "text/plain": ""}


def curve(report: ScalingReport) -> str:
    """Return SVG of throughput (or time) and efficiency against ranks; empty for fewer than two sizes."""
    rows = _drawn(report)
    if len(rows) < 2:
        return ""
    amounts = [(row.time_s if row.throughput is None else row.throughput) or 0.0 for row in rows]
    shares = [row.ranks / rows[0].ranks for row in rows]
    ideal = [amounts[0] * share if report.unit else amounts[0] / share for share in shares]
    amount, unit = (report.unit, "") if report.unit else ("time", "s")

    def pictures(title: str, amounts: Sequence[float], efficiencies: Sequence[float]) -> RunPictures:
        xs = [float(row.ranks) for row in rows]
        base = [(xs[0], 0.0, 0.0), (xs[-1], 0.0, 0.0)]  # nobody sees it, and the axis begins there
        drawn = []
        for name, of, ys in ((amount, unit, amounts), ("efficiency", "%", efficiencies)):
            last = Point(0, xs[-1], ys[-1])
            drawn.append(Picture(name, of, "ranks", xs, ys, base, (), last, None, None, len(ys)))
        return RunPictures(title, drawn)

    measured = pictures("measured", amounts, [100 * (row.efficiency or 0.0) for row in rows])
    return svg([measured, pictures("ideal", ideal, [100.0] * len(rows))])


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


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def table_of(report: ScalingReport) -> Shown:
    """Return the rows as a table."""
    unbroken = [[*(cell.replace(" ", "\N{NO-BREAK SPACE}") for cell in row[:-1]), row[-1]] for row in report.cells]
    html = table(report.title, report.headers, unbroken, report.all_notes).html
    return Shown(str(report), html)


def register(shell: InteractiveShell) -> Callable[[], None]:
    """Show reports richly from now on, in notebooks; returns what ends that."""
    if not is_notebook(shell):
        return lambda: None
    display_formatter: Any = shell.display_formatter  # IPython's has no types
    formatter = display_formatter.formatters["text/html"]
    formatter.for_type(ScalingReport, lambda report: table_of(report).html + curve(report))
    return lambda: formatter.pop(ScalingReport, None)


class ScalingView:
    """What the cell shows.

    Args:
        has_curve: more than one size is to be measured.
    """

    def __init__(self, shell: InteractiveShell, has_curve: bool) -> None:
        self._in_place = is_notebook(shell)
        self._make = displaying() if self._in_place else printing
        self._table = self._make() if self._in_place else None
        self._curve = self._make() if self._in_place and has_curve else None
        self._is_begun = False
        self.output = RunOutput(self._make, self._in_place)

    def show(self, report: ScalingReport) -> None:
        """Show the rows so far; in a terminal, where nothing can be updated, `finish` does."""
        if self._table is not None:
            self._table(table_of(report)._repr_mimebundle_(), self._is_begun)
        if self._curve is not None:
            self._curve(_picture(report), self._is_begun)
        self._is_begun = True

    def tell(self, heading: str, failed: MonarchNbError) -> None:
        """Show why a run failed, as a cell does that fails, below what it printed."""
        sys.stderr.write("\n".join([heading, *failed._render_traceback_(), ""]))

    def finish(self, report: ScalingReport) -> None:
        """Show all rows."""
        self.show(report)
        if not self._in_place:
            show(Shown("\n".join(filter(None, [str(report), bars(report)])), ""))


class RunOutput:
    """Where runs show what they print, each in place of the one before."""

    def __init__(self, make: Callable[[], Publish], in_place: bool) -> None:
        self._make, self._in_place = make, in_place
        self._publish: Publish | None = None
        self._shown = 0  # displays
        self._turn = 0

    def begin(self) -> Publish:
        """Return where the next run shows its output."""
        publish = self._publish = self._publish or self._make()
        turn = self._turn

        def publish_in_turn(
            bundle: dict[str, Any], update: bool, number: int = 0, metadata: dict[str, Any] | None = None
        ) -> None:
            if turn == self._turn:
                publish(bundle, number < self._shown, number, metadata)
                self._shown = max(self._shown, number + 1) * self._in_place

        return publish_in_turn

    def keep(self) -> None:
        """The run has ended, and what it shows stays."""
        self._turn += 1
        self._publish, self._shown = None, 0

    def clear(self) -> None:
        """The run has ended: nothing of it is shown any more, or will be, but in a terminal."""
        self._turn += self._in_place
        for place in range(self._shown):
            assert self._publish is not None
            self._publish(_EMPTY, True, place)


def _picture(report: ScalingReport) -> dict[str, str]:
    drawn, text = curve(report), bars(report)
    if not drawn and not text:  # its place is kept: below the table, and above what runs print
        return calm_line("the curve comes with the second size that succeeds")._repr_mimebundle_()
    return {"text/plain": text, **({"image/svg+xml": drawn} if drawn else {})}
