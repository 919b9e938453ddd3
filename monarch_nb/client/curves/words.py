"""What is said of curves: numbers as people read them, the last values, and which names there are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from monarch_nb.client.logs.metrics import Found, MetricInfo
from monarch_nb.errors import UsageError
from monarch_nb.ground.code_names import run_name
from monarch_nb.ground.rank_sets import format_ranks, name_ranks
from monarch_nb.lines import named
from monarch_nb.lines.named import STEP_NAMES
from monarch_nb.lines.pictures import Picture, Point


def resolved(wanted: Iterable[str], found: Found, number: int) -> list[str]:
    """Return the names that are meant.

    Raises:
        UsageError: no line of the run has one; the message has the nearest ones.
    """
    known = [metric.name for metric in found.metrics]
    chosen = []
    for name in wanted:
        try:
            meant = named.find(name, known)
        except named.Ambiguous as several:
            raise UsageError(f"{name} may be {' or '.join(several.args)}: say which") from None
        if meant is None:
            raise UsageError(not_there(name, known, number, unlisted_lines=found.unlisted_lines))
        chosen.append(meant)
    return chosen


def is_there(name: str, known: Iterable[str]) -> bool:
    """Return whether a name means one of those that are known, or several."""
    try:
        return named.find(name, known) is not None
    except named.Ambiguous:
        return True


def not_there(name: str, known: Sequence[str], number: int, *, unlisted_lines: int = 0) -> str:
    """Return what to say of a name that no line has."""
    run = run_name(number)
    if not known:
        return f"no line of {run} has a number with a name beside it, as in loss: 2.31; --run N draws another run's"
    near = named.nearest(name, known)
    nearest = f"nearest: {', '.join(near)}" if near else f"there are {', '.join(known[:8])}"
    more = f"; {unlisted_lines:,} lines are of too many kinds to be listed" if unlisted_lines else ""
    return f"no line of {run} has {name!r}; {nearest}{more}; --run N draws another run's"


def nowhere(name: str, there: Mapping[str, int], runs: int, *, has_older: bool = False) -> str:
    """Return what to say of a name that none of the newest runs has.

    Args:
        there: the names that they have, each with the newest run that has it.
        runs: how many were looked at. has_older: there are others.

    Example:
        >>> nowhere("los", {"acc": 19, "loss": 18}, 20, has_older=True)
        "none of the newest 20 runs printed los; nearest: loss (run 18); --run N draws an older run's"
    """
    near = named.nearest(name, there)
    known = ", ".join(f"{each} ({run_name(there[each])})" for each in near or [*there][:8])
    said = f"none of the newest {runs} runs printed "
    if not there:
        said += "a number with a name beside it, as in loss: 2.31"
    else:
        said += f"{name}; {'nearest:' if near else 'there are'} {known}"
    return f"{said}; --run N draws an older run's" if has_older else said


def in_older(names: Mapping[str, int]) -> str:
    """Return that older runs have these names, each with the newest run that has it; empty when there are none.

    Example:
        >>> in_older({"loss": 18, "lr": 17})
        'older runs have loss (run 18), lr (run 17)'
    """
    said = [f"{name} ({run_name(number)})" for name, number in names.items()]
    more = f" and {len(said) - 8} more" if len(said) > 8 else ""
    return f"older runs have {', '.join(said[:8])}{more}" if said else ""


def nothing_named(found: Found, number: int) -> str:
    """Return what to say when nobody says what to draw."""
    names = [metric.name for metric in drawable(found.metrics)]
    if not names:
        return not_there("", [], number)
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"name what to draw: {run_name(number)} has {', '.join(names[:12])}{more}"


def drawable(metrics: Iterable[MetricInfo]) -> list[MetricInfo]:
    """Return those that are worth a curve: not the steps, and those that came once after the others."""
    wanted = [metric for metric in metrics if not is_step(metric.name)]
    return sorted(wanted, key=lambda metric: metric.count == len(metric.ranks))


def suggested(metrics: Iterable[MetricInfo]) -> list[str]:
    """Return what is drawn when nobody says: the first loss, else what the most lines have."""
    names = [metric.name for metric in drawable(metrics)]
    return [name for name in names if "loss" in name.lower()][:1] or names[:1]


def is_step(name: str) -> bool:
    """Return whether a name is that of the horizontal axis."""
    return name.lower() in STEP_NAMES


def run_numbers(text: str) -> list[int]:
    """Return the numbers that `--run` names.

    Raises:
        UsageError: they are no numbers of runs.
    """
    numbers = []
    for word in filter(None, text.split(",")):
        if not word.strip().isdecimal() or not int(word):
            raise UsageError(f"--run takes the number of a run, or several as in 12,14, not {text!r}")
        numbers.append(int(word))
    return list(dict.fromkeys(numbers))


MAX_LISTED = 60
MAX_UNIT_CHARACTERS = 12


@dataclass(frozen=True)
class RunPictures:
    """The curves of one run.

    Attributes:
        title: what the run is called. notes: what there is to say of it besides.
    """

    title: str
    pictures: Sequence[Picture]
    notes: Sequence[str] = ()


def number(value: float, unit: str = "") -> str:
    """Return a number as people read it.

    Example:
        >>> number(9012.0), number(2.3104567), number(float("nan")), number(3.1e-05, "s")
        ('9,012', '2.31046', 'nan', '3.1e-05 s')
    """
    if not math.isfinite(value):
        text = str(value)
    elif value == int(value) and abs(value) < 1e15:
        text = f"{int(value):,}"
    else:
        text = f"{value:,.2f}" if abs(value) >= 1000 else f"{value:.6g}"
    return f"{text}{'' if unit in ('', '%') else ' '}{unit}"


def x_name(x: str) -> str:
    """Return what stands below an axis."""
    return "lines with it" if x == "line" else x


def text(runs: Sequence[RunPictures]) -> str:
    """Return the last values of curves, as plain text."""
    lines = []
    for run in runs:
        lines.append(run.title)
        lines += [f"  {line}" for picture in run.pictures for line in described(picture)]
        lines += [f"  {note}" for note in run.notes]
    return "\n".join(lines)


def described(picture: Picture) -> list[str]:
    """Return what is to be said of a curve."""
    first, least, greatest = picture.first, picture.least, picture.greatest
    if first is None:
        return [f"{picture.name}: nothing yet"]
    at = f" at {picture.x} {number(first.x)}" if picture.x != "line" else ""
    said = f"{picture.name}: {number(first.value, picture.unit)}{at} on rank {first.rank}"
    if least is not None and greatest is not None and least.value != greatest.value:
        said += f"; last {_of_rank(least, picture.unit)} to {_of_rank(greatest, picture.unit)}"
    lines = [said]
    if picture.odd:
        odd = picture.odd[0]
        ranks = name_ranks([each.rank for each in picture.odd])
        more = f" and {picture.odd_ranks - len(picture.odd)} more" if picture.odd_ranks > len(picture.odd) else ""
        lines.append(
            f"{picture.name}: {number(odd.value)} first at {x_name(picture.x)} {number(odd.x)} on {ranks}{more}"
        )
    if picture.left_out:
        lines.append(f"{picture.name}: {picture.left_out:,} numbers in lines without {x_name(picture.x)} are not drawn")
    return lines


def _of_rank(point: Point, unit: str) -> str:
    return f"{number(point.value, unit)} (rank {point.rank})"


@dataclass(frozen=True)
class Listing:
    """What can be drawn of a run, as a table.

    Attributes:
        example: a name that can be drawn; empty when there is none. notes: what there is to say besides.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    example: str


def listing(found: Found) -> Listing:
    """Return what can be drawn of a run."""
    rows = [
        [
            metric.name,
            format_ranks(metric.ranks),
            f"{metric.count:,}",
            number(metric.last, metric.unit[:MAX_UNIT_CHARACTERS]),
        ]
        for metric in found.metrics[:MAX_LISTED]
    ]
    notes = []
    if len(found.metrics) > MAX_LISTED:
        notes.append(f"and {len(found.metrics) - MAX_LISTED} more")
    if not found.is_all:
        notes.append("the log is long: what was read in 2 s is counted")
    if found.unlisted_lines:
        notes.append(f"{found.unlisted_lines:,} lines are of too many kinds: what only they have is not listed")
    if not rows:
        notes.append("no line has a number with a name beside it, as in loss: 2.31")
    names = [metric.name for metric in found.metrics]
    example = next((name for name in names if not is_step(name)), next(iter(names), ""))
    return Listing(["name", "ranks", "lines", "last"], rows, notes, example)
