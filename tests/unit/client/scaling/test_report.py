"""What is computed from the runs of a series, and what can be asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from monarch_nb.client.scaling.report import (
    Measured,
    Plan,
    Sample,
    ScalingReport,
    number,
    plan,
    report_of,
    seconds,
    sizes_of,
)
from monarch_nb.errors import UsageError


def report(asked: Plan, times: dict[int, Sequence[float]], number: float = 1000, price: float = 0.0) -> ScalingReport:
    """A series in which each run told the same number, on nodes of 4 ranks."""
    return report_of(
        asked,
        [Measured(size, -(-size // 4), [Sample(each, number, 7) for each in every]) for size, every in times.items()],
        price,
    )


def efficiencies(of: ScalingReport) -> list[float | None]:
    return [row.efficiency for row in of.rows]


def test_work_that_is_the_same_in_all() -> None:
    of = report(Plan((1, 2, 4)), {1: [8.0], 2: [4.0], 4: [4.0]})
    assert efficiencies(of) == [1.0, 1.0, 0.5]
    assert of.rows[0].throughput == 1000  # told, and not asked for: it is no part of the table
    assert "1000" not in str(of)


def test_work_that_each_rank_does() -> None:
    assert efficiencies(report(Plan((1, 2, 4), is_weak=True), {1: [4.0], 2: [4.0], 4: [8.0]})) == [1.0, 1.0, 0.5]


def test_a_throughput_from_an_amount_and_one_that_is_told() -> None:
    of = report(Plan((2, 4), per="tokens"), {2: [1.0, 2.0, 4.0], 4: [1.0]})
    assert [row.throughput for row in of.rows] == [500, 1000]
    assert efficiencies(of) == [1.0, 1.0]
    assert of.unit == "tokens/s"
    told = report(Plan((2, 4), rate="tps"), {2: [1.0], 4: [9.0]})
    assert [row.throughput for row in told.rows] == [1000, 1000]
    assert efficiencies(told) == [1.0, 0.5]


def test_the_median_and_its_spread() -> None:
    of = report(Plan((1,), repeat=3), {1: [1.0, 9.0, 2.0]})
    assert of.rows[0].time_s == 2.0
    assert "1 s to 9 s" in str(of)


def test_a_node_costs_as_a_whole() -> None:
    of = report(Plan((1, 4, 5)), {1: [3600.0], 4: [900.0], 5: [900.0]}, price=4.0)
    assert [row.cost for row in of.rows] == [4.0, 1.0, 2.0]
    assert "$4.00" in str(of)
    assert "cost: of one run on whole nodes, at $4.00 an hour each" in str(of)
    assert "cost" not in str(report(Plan((1, 2)), {1: [1.0], 2: [1.0]}))


def test_the_smallest_that_succeeded_is_what_others_are_compared_with() -> None:
    rows = [
        Measured(1, 1, [], "rank 0 failed: KeyError: 1"),
        Measured(2, 1, [Sample(1.0)]),
        Measured(4, 1, [Sample(1.0)]),
    ]
    of = report_of(Plan((1, 2, 4)), rows)
    assert efficiencies(of) == [None, 1.0, 0.5]
    assert str(of).splitlines()[2:4] == [
        "  1                        rank 0 failed: KeyError: 1",
        "  2      1 s   100 %",
    ]
    assert "ranks × time on 2 ranks / ranks × time" in str(of)


def test_a_number_that_was_not_told_or_is_nothing() -> None:
    nothing = [Measured(1, 1, [Sample(1.0)]), Measured(2, 1, [Sample(0.0, 5.0)]), Measured(4, 1, [Sample(1.0, 0.0)])]
    assert efficiencies(report_of(Plan((1, 2, 4), per="tokens"), nothing)) == [None, None, None]


def test_sizes() -> None:
    for text, sizes in {"1,2,4,8": [1, 2, 4, 8], " 8, 1-3 ": [8, 1, 2, 3], "2,2": [2, 2], "4-4": [4]}.items():
        assert sizes_of(text) == sizes
    assert plan([8, 1, 4, 4], most=8).sizes == (1, 4, 8), "in order, and each once"


def test_what_is_no_size() -> None:
    for text in ("", "1,,2", "all", "1:4", "-2", "4-", "4-2", "1.5", "²", "2x", f"1-{10**9}"):
        with pytest.raises(UsageError, match="--scale"):
            sizes_of(text)


@pytest.mark.parametrize(
    ("sizes", "options", "says"),
    [
        ([1, 16, 9], {}, "can not run on 9 ranks: there are 8 ranks; nothing was run"),
        ([], {}, "no size is named"),
        ([0, 1], {}, "at least 1, not 0"),
        ([1], {"repeat": 0}, "at least once, not 0 times"),
        ([1], {"per": "tokens", "rate": "tps"}, "name one of them"),
        ([1], {"per": "tokens", "weak": True}, "leave weak out"),
    ],
)
def test_what_can_not_be_measured(sizes: list[int], options: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan(sizes, 8, **options)  # type: ignore[arg-type]


def test_no_figure_is_written_as_a_power_of_ten() -> None:
    assert [seconds(each) for each in (0.0047, 0.0994, 0.0996, 0.1, 12.42)] == [
        "4.7 ms",
        "99 ms",
        "0.0996 s",
        "0.1 s",
        "12.4 s",
    ]
    assert [number(each) for each in (87.21, 999.4, 999.7, 12345.1)] == ["87.2", "999", "1,000", "12,345"]
