"""Durations as people write them and as we say them."""

import time
from datetime import timedelta
from typing import Any

import pytest

from monarch_nb.errors import UsageError
from monarch_nb.times import duration, seconds_of, time_of_day


def test_a_duration_is_read() -> None:
    read = {"90m": 5400, "8h": 28800, "2d": 172800, "1h30m": 5400, " 1H30M ": 5400, "1.5h": 5400, "2s": 2}
    for given, seconds in (*read.items(), (timedelta(hours=8), 28800), (90, 90), (0.5, 0.5)):
        assert seconds_of(given, "--time") == seconds


@pytest.mark.parametrize(
    "given",
    [
        *("", "8", "h", "0h", "-1h", "30m1h", "8 hours", "1e3s", "٣h", "400d"),
        *(0, -1, float("nan"), float("inf"), True, None),
    ],
)
def test_what_is_no_duration_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match=r"^--time is a time such as 30s, 90m, 8h, 2d or 1h30m, .* not "):
        seconds_of(given, "--time")


def test_durations_and_times_are_told() -> None:
    told = {0.04: "0.04 s", 0.1: "0.1 s", 1.94: "1.9 s", 59.2: "59 s"}
    told |= {130: "2 min 10 s", 7800: "2 h 10 min", 180000: "2 d 2 h"}
    assert {seconds: duration(seconds) for seconds in told} == told
    now = time.time()
    assert time_of_day(now) == time.strftime("%H:%M", time.localtime(now))
    assert time_of_day(now - 3 * 86400) == time.strftime("%Y-%m-%d %H:%M", time.localtime(now - 3 * 86400))
