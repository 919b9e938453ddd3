"""What a series of runs on more and more ranks has shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from monarch_nb.errors import UsageError
from monarch_nb.ground.rank_sets import MOST_NAMED, counted, format_ranks
from monarch_nb.times import duration


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    Attributes:
        sizes: how many ranks, the smallest first, each once.
        repeat: so many runs of each size.
        per: the name of an amount that each run tells, such as tokens: the throughput is that divided by the time.
        rate: the name of a throughput that each run tells itself. At most one of these two is there.
        is_weak: each rank does the same work, whatever the size; else it is the same in all. A throughput says that
            better.
    """

    sizes: tuple[int, ...]
    repeat: int = 1
    per: str = ""
    rate: str = ""
    is_weak: bool = False

    @property
    def wanted(self) -> str:
        """The name of the number that each run is to tell; empty when there is none."""
        return self.per or self.rate

    @property
    def unit(self) -> str:
        """Of the throughput: "tokens/s"; empty when there is none."""
        return f"{self.per}/s" if self.per else self.rate


def plan(
    sizes: Iterable[int], most: int, *, repeat: int = 1, per: str = "", rate: str = "", weak: bool = False
) -> Plan:
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
    if repeat < 1:
        raise UsageError(f"each size is run at least once, not {repeat} times")
    if per and rate:
        raise UsageError("per names an amount and rate a throughput: name one of them")
    if weak and (per or rate):
        raise UsageError(f"the efficiency comes from {per or rate}, however the work is split: leave weak out")
    return Plan(chosen, repeat, per, rate, weak)


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


@dataclass(frozen=True)
class Sample:
    """One run.

    Attributes:
        time_s: of its slowest rank.
        number: what the run told; None when it told nothing.
        run: the run's number.
    """

    time_s: float
    number: float | None = None
    run: int = 0


@dataclass
class Measured:
    """What is known of a size so far. `failure` is a sentence when a run of it has failed."""

    size: int
    nodes: int
    samples: list[Sample]
    failure: str = ""


@dataclass(frozen=True)
class ScalingRow:
    """One size.

    Attributes:
        ranks: how many there were. nodes: on how many nodes they are.
        times_s: of each run that succeeded, its slowest rank's.
        throughputs: of each run that told one.
        runs: the numbers of the runs, as logs have them.
        efficiency: 1.0 for the smallest size; None when it is not known.
        cost: what one run of it costs, in US dollars; None when the price is not known.
        failure: why there are no more runs of it; empty when none has failed.
    """

    ranks: int
    nodes: int
    times_s: tuple[float, ...]
    throughputs: tuple[float, ...]
    runs: tuple[int, ...]
    efficiency: float | None
    cost: float | None
    failure: str = ""

    @property
    def time_s(self) -> float | None:
        """The median of the times."""
        return median(self.times_s) if self.times_s else None

    @property
    def throughput(self) -> float | None:
        """The median of the throughputs."""
        return median(self.throughputs) if self.throughputs else None


@dataclass(frozen=True, repr=False)
class ScalingReport:
    """Rows by size, and how to read them. `str(report)` is a table.

    Attributes:
        rows: those of sizes that were begun, the smallest first.
        sizes: all that were asked for.
        repeat: how many runs of each were.
        unit: of the throughputs: "tokens/s"; empty when none was asked for.
        is_weak: the efficiency is that of the same work for each rank. Says nothing where there are throughputs.
        price_per_node_hour: in US dollars; 0 when it is not known.
        notes: sentences that belong below the table.
    """

    rows: tuple[ScalingRow, ...]
    sizes: tuple[int, ...]
    repeat: int
    unit: str
    is_weak: bool
    price_per_node_hour: float
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What was asked for, in one line."""
        each = f", {self.repeat} runs of each" if self.repeat > 1 else ""
        named = ", ".join(map(str, self.sizes)) if len(self.sizes) <= MOST_NAMED else format_ranks(self.sizes)
        return f"on {named} rank{'' if self.sizes == (1,) else 's'}{each}"

    @property
    def headers(self) -> list[str]:
        """Of the table."""
        spread = f"least to most of {self.repeat}" if self.repeat > 1 else ""
        return ["ranks", "time", spread, self.unit, "efficiency", "cost", ""]

    @property
    def cells(self) -> list[list[str]]:
        """The table, row by row."""
        return [self._cells_of(row) for row in self.rows]

    def _cells_of(self, row: ScalingRow) -> list[str]:
        spread = f"{seconds(min(row.times_s))} to {seconds(max(row.times_s))}" if len(row.times_s) > 1 else ""
        return [
            str(row.ranks),
            seconds(row.time_s) if row.time_s is not None else "",
            spread,
            number(row.throughput) if row.throughput is not None else "",
            f"{100 * row.efficiency:.0f} %" if row.efficiency is not None else "",
            dollars(row.cost) if row.cost is not None else "",
            row.failure,
        ]

    @property
    def all_notes(self) -> list[str]:
        """How the table is to be read, and what else there is to say of it."""
        return [*filter(None, [self._about_time(), self._about_efficiency(), self._about_cost()]), *self.notes]

    def __str__(self) -> str:
        table = [self.headers, *self.cells]
        kept = [column for column, _ in enumerate(self.headers) if any(row[column] for row in table[1:])]
        widths = {column: max(len(row[column]) for row in table) for column in kept}
        lines = ["  ".join(row[column].ljust(widths[column]) for column in kept).rstrip() for row in table]
        return "\n".join([self.title, *(f"  {line}" for line in lines if self.rows), *self.all_notes])

    def __repr__(self) -> str:
        return str(self)

    def _about_time(self) -> str:
        if not any(row.times_s for row in self.rows):
            return ""
        return f"time: of the slowest rank{', the median' if self.repeat > 1 else ''}"

    def _about_efficiency(self) -> str:
        base = next((row for row in self.rows if row.efficiency is not None), None)
        if base is None or len(self.sizes) == 1:
            return ""
        against = counted(base.ranks, "rank")
        if self.unit:
            return f"efficiency: {self.unit} of each rank, against that on {against}"
        if self.is_weak:
            return f"efficiency: the time on {against} / the time; each rank does the same work"
        return f"efficiency: ranks × time on {against} / ranks × time; the work is the same in all"

    def _about_cost(self) -> str:
        if not self.price_per_node_hour:
            return ""
        return f"cost: of one run on whole nodes, at {dollars(self.price_per_node_hour)} an hour each"


def report_of(
    asked: Plan, measured: Sequence[Measured], price_per_node_hour: float = 0.0, notes: Iterable[str] = ()
) -> ScalingReport:
    """Return what was measured so far.

    Args:
        measured: the smallest size first.
    """
    base: tuple[int, float] | None = None
    rows = []
    for each in measured:
        times_s = tuple(sample.time_s for sample in each.samples)
        throughputs = tuple(value for sample in each.samples if (value := _throughput(asked, sample)) is not None)
        worth = _worth(asked, each.size, times_s, throughputs)
        if base is None and worth is not None:
            base = each.size, worth
        cost = median(times_s) / 3600 * each.nodes * price_per_node_hour if times_s and price_per_node_hour else None
        rows.append(
            ScalingRow(
                each.size,
                each.nodes,
                times_s,
                throughputs,
                tuple(sample.run for sample in each.samples),
                worth / base[1] if worth is not None and base is not None else None,
                cost,
                each.failure,
            )
        )
    unit, is_weak = asked.unit, asked.is_weak
    return ScalingReport(tuple(rows), asked.sizes, asked.repeat, unit, is_weak, price_per_node_hour, tuple(notes))


def _throughput(asked: Plan, sample: Sample) -> float | None:
    if sample.number is None or not asked.per:
        return sample.number
    return sample.number / sample.time_s if sample.time_s > 0 else None


def _worth(asked: Plan, size: int, times_s: Sequence[float], throughputs: Sequence[float]) -> float | None:
    """Return what a rank does in a second, in a unit that is the same for all sizes; None when it is not known."""
    if asked.wanted:
        return median(throughputs) / size if throughputs and median(throughputs) > 0 else None
    time_s = median(times_s) if times_s else 0.0
    return 1 / time_s / (1 if asked.is_weak else size) if time_s > 0 else None


def seconds(time_s: float) -> str:
    """Return "4.7 ms", "0.31 s", "12.4 s" or "2 min 10 s"."""
    if time_s >= 100:
        return duration(time_s)
    return f"{time_s:.3g} s" if time_s >= 0.0995 else f"{1000 * time_s:.2g} ms"  # not "1e+02 ms"


def number(value: float) -> str:
    """Return "12,345", "87.2" or "0.0123"."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def dollars(amount: float) -> str:
    """Return "$12.40", and of less than a dollar two digits that count."""
    return f"${amount:,.2f}" if amount >= 1 else f"${float(f'{amount:.2g}'):.6f}".rstrip("0").rstrip(".")
