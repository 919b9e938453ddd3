"""What a series of runs on more and more ranks has shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from monarch_nb.errors import UsageError
from monarch_nb.ground.rank_sets import MOST_NAMED, counted, format_ranks
from monarch_nb.times import duration


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    Attributes:
        sizes: how many ranks, the smallest first, each once.
        per: the name of an amount that each run tells, such as tokens: the throughput is that divided by the time.
    """

    sizes: tuple[int, ...]
    per: str = ""

    @property
    def unit(self) -> str:
        """Of the throughput: "tokens/s"; empty when there is none."""
        return f"{self.per}/s" if self.per else ""


def plan(sizes: Iterable[int], most: int, per: str = "") -> Plan:
    """Return a plan that can be carried out.

    Args:
        most: how many ranks there are.

    Raises:
        UsageError: it can not; the message says why.
    """
    chosen = tuple(sorted(set(sizes)))
    if not chosen:
        raise UsageError("no size is named: name one at least, as in --scale 1,2,4")
    if chosen[0] < 1:
        raise UsageError(f"a size is a number of ranks, at least 1, not {chosen[0]}")
    if too_large := [size for size in chosen if size > most]:
        there = "there is 1 rank" if most == 1 else f"there are {most} ranks"
        raise UsageError(f"can not run on {counted(too_large[0], 'rank')}: {there}; nothing was run")
    return Plan(chosen, per)


def sizes_of(text: str) -> list[int]:
    """Return the sizes that a line names: numbers, and ranges with both ends.

    Raises:
        UsageError: it can not be read.

    Example:
        >>> sizes_of("1,2,4-6")
        [1, 2, 4, 5, 6]
    """
    sizes: list[int] = []
    for part in text.split(","):
        first, dash, last = (each.strip() for each in part.strip().partition("-"))
        if not (first.isascii() and first.isdigit()) or (dash and not (last.isascii() and last.isdigit())):
            raise UsageError(f"--scale is numbers of ranks such as 1,2,4,8 or 1-4, not {text!r}")
        if dash and int(last) < int(first):
            raise UsageError(f"--scale {part.strip()}: the range ends before it begins")
        if int(last or first) > _LARGEST:
            raise UsageError(f"--scale {part.strip()}: more than {_LARGEST:,} ranks are not possible")
        sizes += range(int(first), int(last or first) + 1)
    return sizes


_LARGEST = 1 << 20
_MORE = 1.05
"""An efficiency that is above that is explained."""


@dataclass
class Measured:
    """What is known of a size so far.

    Attributes:
        time_s: of the run's slowest rank; None when it has not succeeded.
        number: what the run told; None when it told nothing.
        run: the run's number.
        failure: a sentence when the run has failed.
    """

    size: int
    time_s: float | None = None
    number: float | None = None
    run: int = 0
    failure: str = ""


@dataclass(frozen=True)
class ScalingRow:
    """One size.

    Attributes:
        ranks: how many there were.
        time_s: of the slowest rank; None when the run failed.
        throughput: None when the run told no amount, or was asked for none.
        run: the number of the run, as logs have it; 0 when it failed.
        efficiency: 1.0 for the smallest size; None when it is not known.
        failure: why the run failed; empty when it did not.
    """

    ranks: int
    time_s: float | None
    throughput: float | None
    run: int
    efficiency: float | None
    failure: str = ""


@dataclass(frozen=True, repr=False)
class ScalingReport:
    """Rows by size, and how to read them. `str(report)` is a table.

    Attributes:
        rows: those of sizes that were begun, the smallest first.
        sizes: all that were asked for.
        unit: of the throughputs: "tokens/s"; empty when none was asked for.
        notes: sentences that belong below the table.
    """

    rows: tuple[ScalingRow, ...]
    sizes: tuple[int, ...]
    unit: str
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What was asked for, in one line."""
        named = ", ".join(map(str, self.sizes)) if len(self.sizes) <= MOST_NAMED else format_ranks(self.sizes)
        return f"on {named} rank{'' if self.sizes == (1,) else 's'}"

    @property
    def headers(self) -> list[str]:
        """Of the table."""
        return ["ranks", "time", self.unit, "efficiency", ""]

    @property
    def cells(self) -> list[list[str]]:
        """The table, row by row."""
        return [self._cells_of(row) for row in self.rows]

    def _cells_of(self, row: ScalingRow) -> list[str]:
        return [
            str(row.ranks),
            seconds(row.time_s) if row.time_s is not None else "",
            number(row.throughput) if row.throughput is not None else "",
            f"{100 * row.efficiency:.0f} %" if row.efficiency is not None else "",
            row.failure,
        ]

    @property
    def all_notes(self) -> list[str]:
        """How the table is to be read, and what else there is to say of it."""
        return [*filter(None, [self._about_time(), self._about_efficiency(), self._about_more()]), *self.notes]

    def __str__(self) -> str:
        table = [self.headers, *self.cells]
        kept = [column for column, _ in enumerate(self.headers) if any(row[column] for row in table[1:])]
        widths = {column: max(len(row[column]) for row in table) for column in kept}
        lines = ["  ".join(row[column].ljust(widths[column]) for column in kept).rstrip() for row in table]
        return "\n".join([self.title, *(f"  {line}" for line in lines if self.rows), *self.all_notes])

    def __repr__(self) -> str:
        return str(self)

    def _about_time(self) -> str:
        return "time: of the slowest rank" if any(row.time_s is not None for row in self.rows) else ""

    def _about_efficiency(self) -> str:
        base = next((row for row in self.rows if row.efficiency is not None), None)
        if base is None or len(self.sizes) == 1:
            return ""
        against = counted(base.ranks, "rank")
        if self.unit:
            return f"efficiency: {self.unit} of each rank, against that on {against}"
        return f"efficiency: ranks × time on {against} / ranks × time; the work is the same in all"

    def _about_more(self) -> str:
        """Return how more than a perfect machine can do comes about: more than noise does."""
        known = [row for row in self.rows if row.efficiency is not None]
        if all((row.efficiency or 0.0) < _MORE for row in known):
            return ""
        said = f"more than 100 %: {counted(known[0].ranks, 'rank')} began cold (import in an earlier cell), or"
        if self.unit:
            return f"{said} each rank told the {self.unit.removesuffix('/s')} of all (they are added up)"
        return f"{said} the work is not the same in all (--per NAME counts it)"


def report_of(asked: Plan, measured: Sequence[Measured], notes: Iterable[str] = ()) -> ScalingReport:
    """Return what was measured so far.

    Args:
        measured: the smallest size first.
    """
    base: float | None = None
    rows = []
    for each in measured:
        throughput = _throughput(each) if asked.per else None
        worth = _worth(asked, each, throughput)
        base = base or worth
        efficiency = worth / base if worth is not None and base is not None else None
        rows.append(ScalingRow(each.size, each.time_s, throughput, each.run, efficiency, each.failure))
    return ScalingReport(tuple(rows), asked.sizes, asked.unit, tuple(notes))


def _throughput(measured: Measured) -> float | None:
    return measured.number / measured.time_s if measured.number is not None and measured.time_s else None


def _worth(asked: Plan, measured: Measured, throughput: float | None) -> float | None:
    """Return what a rank does in a second, in a unit that is the same for all sizes; None when it is not known."""
    if asked.per:
        return throughput / measured.size if throughput is not None and throughput > 0 else None
    return 1 / measured.time_s / measured.size if measured.time_s else None


def seconds(time_s: float) -> str:
    """Return "4.7 ms", "0.31 s", "12.4 s" or "2 min 10 s"."""
    if time_s >= 100:
        return duration(time_s)
    return f"{time_s:.3g} s" if time_s >= 0.0995 else f"{1000 * time_s:.2g} ms"  # not "1e+02 ms"


def number(value: float) -> str:
    """Return "12,345", "87.2" or "0.0123"."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
