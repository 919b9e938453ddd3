"""Durations and times of day, as people write and read them. Standard library only."""

from __future__ import annotations

import math
import re
import time
from datetime import timedelta

from monarch_nb.errors import UsageError

Duration = timedelta | str | float
"""How long: a timedelta, "8h" or "1h30m", or a number of seconds."""

LONGEST_S = 366 * 86400.0
_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_TEXT = re.compile("".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?){unit})?" for unit in _UNITS_S), re.ASCII)
_SLURMS = re.compile(r"(?=\d+-|\d+:\d+:)(?:(?P<d>\d+)-)?(?P<h>\d+)(?::(?P<m>\d+)(?::(?P<s>\d+))?)?", re.ASCII)
"""1:30:00, 1-12, 1-12:30 and 1-12:30:00."""
_AMBIGUOUS = re.compile(r"(?!0+:00)0*(\d+):0?(\d|[1-5]\d)", re.ASCII)
"""8:00 is eight minutes for Slurm, and eight hours for LSF."""


def seconds_of(given: object, what: str) -> float:
    """Return a Duration in seconds. It may be written as for Slurm: 1:30:00, 2-00:00:00. A text without a unit is
    refused: tools differ in what a bare number means.

    Args:
        what: names it in the error, as in "--time".

    Raises:
        UsageError: it can not be read, may be read in two ways (8:00), is not above 0 or longer than a year.

    Example:
        >>> seconds_of("1h30m", "--time")
        5400.0
    """
    if isinstance(given, str):
        text = given.strip().lower()
        if match := _AMBIGUOUS.fullmatch(text):
            first, second = match.groups()
            ways = (f"{first}h{second}m", f"{first}m{second}s")
            hours, minutes = (re.sub(r"(?<!\d)0[hms]", "", way) for way in ways)
            raise UsageError(f"{what} {given} may be hours or minutes, as tools differ: type {hours} or {minutes}")
        match = _TEXT.fullmatch(text) or _SLURMS.fullmatch(text)
        parts = {unit: number for unit, number in match.groupdict().items() if number} if match else {}
        seconds = sum(float(number) * _UNITS_S[unit] for unit, number in parts.items()) if parts else math.nan
    elif isinstance(given, timedelta):
        seconds = given.total_seconds()
    elif isinstance(given, (int, float)) and not isinstance(given, bool):
        seconds = float(given)
    else:
        seconds = math.nan
    if not 0 < seconds <= LONGEST_S:
        times = "a time such as 30s, 90m, 8h, 2d, 1h30m or 1:30:00, above 0 and at most a year"
        raise UsageError(f"{what} is {times}, not {given!r}")
    return seconds


def duration(seconds: float) -> str:
    """Return "0.04 s", "1.9 s", "12 s", "2 min 10 s", "2 h 10 min" or "3 d 2 h"."""
    if seconds < 0.1:
        return f"{seconds:.2f} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return _two_units(seconds, "min", 60, "s", 1)
    if seconds < 86400:
        return _two_units(seconds, "h", 3600, "min", 60)
    return _two_units(seconds, "d", 86400, "h", 3600)


def time_of_day(at: float) -> str:
    """Return "14:02" for a time (seconds since the epoch) of today, else "2026-11-20 14:02"."""
    then = time.localtime(at)
    is_today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if is_today else "%Y-%m-%d %H:%M", then)


def _two_units(seconds: float, unit: str, size: int, smaller: str, smaller_size: int) -> str:
    whole, rest = divmod(int(seconds), size)
    rest //= smaller_size
    return f"{whole} {unit} {rest} {smaller}" if rest else f"{whole} {unit}"
