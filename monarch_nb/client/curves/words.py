"""What is said of curves: numbers as people read them, the last values, and which names there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from monarch_nb.client.curves.names import is_step
from monarch_nb.client.logs.metrics import Found
from monarch_nb.ground.rank_sets import format_ranks, name_ranks
from monarch_nb.lines.pictures import Picture, Point

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
