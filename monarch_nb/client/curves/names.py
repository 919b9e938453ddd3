"""Which numbers of a run are meant by a name, and which are drawn when nobody says. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from monarch_nb.client.logs.metrics import Found, MetricInfo
from monarch_nb.errors import UsageError
from monarch_nb.ground.code_names import run_name
from monarch_nb.lines import choosing
from monarch_nb.lines.named import STEP_NAMES


def resolved(wanted: Iterable[str], found: Found, number: int) -> list[str]:
    """Return the names that are meant.

    Raises:
        UsageError: no line of the run has one; the message has the nearest ones.
    """
    known = [metric.name for metric in found.metrics]
    chosen = []
    for name in wanted:
        try:
            meant = choosing.find(name, known)
        except choosing.Ambiguous as several:
            raise UsageError(f"{name} may be {' or '.join(several.args)}: say which") from None
        if meant is None:
            raise UsageError(not_there(name, known, number, unlisted_lines=found.unlisted_lines))
        chosen.append(meant)
    return chosen


def is_there(name: str, known: Iterable[str]) -> bool:
    """Return whether a name means one of those that are known, or several."""
    try:
        return choosing.find(name, known) is not None
    except choosing.Ambiguous:
        return True


def not_there(name: str, known: Sequence[str], number: int, *, unlisted_lines: int = 0) -> str:
    """Return what to say of a name that no line has."""
    run = run_name(number)
    if not known:
        return f"no line of {run} has a number with a name beside it, as in loss: 2.31; --run N draws another run's"
    near = choosing.nearest(name, known)
    nearest = f"nearest: {', '.join(near)}" if near else f"there are {', '.join(known[:8])}"
    more = f"; {unlisted_lines:,} lines are of too many kinds to be listed" if unlisted_lines else ""
    return f"no line of {run} has {name!r}; {nearest}{more}; --run N draws another run's"


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
