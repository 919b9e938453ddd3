"""What is computed from the runs of a series, and what can be asked for."""

from __future__ import annotations

import pytest

from monarch_nb.client.meshes.scaling_report import (
    Measured,
    Plan,
    ScalingReport,
    number,
    plan,
    report_of,
    seconds,
    sizes_of,
)
from monarch_nb.errors import UsageError


def report(asked: Plan, times: dict[int, float]) -> ScalingReport:
    """A series in which each run told the same number."""
    return report_of(asked, [Measured(size, time_s, 1000, 7) for size, time_s in times.items()])


def efficiencies(of: ScalingReport) -> list[float | None]:
    return [row.efficiency for row in of.rows]


def test_work_that_is_the_same_in_all() -> None:
    of = report(Plan((1, 2, 4)), {1: 8.0, 2: 4.0, 4: 4.0})
    assert efficiencies(of) == [1.0, 1.0, 0.5]
    assert of.rows[0].throughput is None, "told, and not asked for"


def test_a_throughput_from_an_amount() -> None:
    of = report(Plan((2, 4), "tokens"), {2: 2.0, 4: 1.0})
    assert [row.throughput for row in of.rows] == [500, 1000]
    assert efficiencies(of) == [1.0, 1.0]
    assert of.unit == "tokens/s"
    assert "more than 100 %" not in str(of)
    assert "more than 100 %: 1 rank began cold (import in an earlier cell), or each rank told the tokens of all" in str(
        report(Plan((1, 2), "tokens"), {1: 2.0, 2: 0.5})
    )


def test_the_smallest_that_succeeded_is_what_others_are_compared_with() -> None:
    rows = [
        Measured(1, failure="rank 0 failed: KeyError: 1"),
        Measured(2, 1.0),
        Measured(4, 1.0),
    ]
    of = report_of(Plan((1, 2, 4)), rows)
    assert efficiencies(of) == [None, 1.0, 0.5]
    assert str(of).splitlines()[2:4] == [
        "  1                        rank 0 failed: KeyError: 1",
        "  2      1 s   100 %",
    ]
    assert "ranks × time on 2 ranks / ranks × time" in str(of)


def test_a_number_that_was_not_told_or_is_nothing() -> None:
    nothing = [Measured(1, 1.0), Measured(2, 0.0, 5.0), Measured(4, 1.0, 0.0)]
    assert efficiencies(report_of(Plan((1, 2, 4), "tokens"), nothing)) == [None, None, None]


def test_sizes() -> None:
    for text, sizes in {"1,2,4,8": [1, 2, 4, 8], " 8, 1-3 ": [8, 1, 2, 3], "2,2": [2, 2], "4-4": [4]}.items():
        assert sizes_of(text) == sizes
    assert plan([8, 1, 4, 4], most=8).sizes == (1, 4, 8), "in order, and each once"


def test_what_is_no_size() -> None:
    for text in ("", "1,,2", "all", "1:4", "-2", "4-", "4-2", "1.5", "²", "2x", f"1-{10**9}"):
        with pytest.raises(UsageError, match="--scale"):
            sizes_of(text)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ([1, 16, 9], "can not run on 9 ranks: there are 8 ranks; nothing was run"),
        ([], "no size is named"),
        ([0, 1], "at least 1, not 0"),
    ],
)
def test_what_can_not_be_measured(sizes: list[int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan(sizes, 8)


def test_no_figure_is_written_as_a_power_of_ten() -> None:
    assert [seconds(each) for each in (0.0047, 0.0994, 0.0996, 0.1, 12.42)] == [
        "4.7 ms",
        "99 ms",
        "0.0996 s",
        "0.1 s",
        "12.4 s",
    ]
    assert [number(each) for each in (87.21, 999.4, 999.7, 12345.1)] == ["87.2", "999", "1,000", "12,345"]
