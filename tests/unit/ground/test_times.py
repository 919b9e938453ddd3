"""Durations as people write them and as we say them."""

import time
from datetime import timedelta
from typing import Any

import pytest

from monarch_nb.errors import UsageError
from monarch_nb.times import duration, seconds_of, time_of_day


def test_a_duration_is_read() -> None:
    read = {"90m": 5400, "8h": 28800, "2d": 172800, "1h30m": 5400, " 1H30M ": 5400, "1.5h": 5400, "2s": 2}
    read |= {"1:30:00": 5400, "00:00:02": 2, "1-12": 129600, "2-00:30": 174600, "1-00:00:05": 86405}
    for given, seconds in (*read.items(), (timedelta(hours=8), 28800), (90, 90), (0.5, 0.5)):
        assert seconds_of(given, "--time") == seconds


@pytest.mark.parametrize(
    "given",
    [
        *("", "8", "h", "0h", "-1h", "30m1h", "8 hours", "1e3s", "٣h", "400d", "8:60", "0:00", "1-", "::1"),
        *(0, -1, float("nan"), float("inf"), True, None),
    ],
)
def test_what_is_no_duration_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match=r"^--time is a time such as 30s, 90m, 8h, 2d, 1h30m or 1:30:00, .* not "):
        seconds_of(given, "--time")


def test_what_may_be_hours_or_minutes_is_refused_with_both() -> None:
    for given, hours, minutes in (("8:00", "8h", "8m"), ("01:30", "1h30m", "1m30s"), ("0:05", "5m", "5s")):
        with pytest.raises(UsageError) as raised:
            seconds_of(given, "--time")
        ways = f"{hours} or {minutes}"
        assert str(raised.value) == f"--time {given} may be hours or minutes, as tools differ: type {ways}"
        assert seconds_of(hours, "--time") == 60 * seconds_of(minutes, "--time")


def test_durations_and_times_are_told() -> None:
    told = {0.04: "0.04 s", 0.1: "0.1 s", 1.94: "1.9 s", 59.2: "59 s"}
    told |= {130: "2 min 10 s", 7800: "2 h 10 min", 180000: "2 d 2 h"}
    assert {seconds: duration(seconds) for seconds in told} == told
    now = time.time()
    assert time_of_day(now) == time.strftime("%H:%M", time.localtime(now))
    assert time_of_day(now - 3 * 86400) == time.strftime("%Y-%m-%d %H:%M", time.localtime(now - 3 * 86400))
