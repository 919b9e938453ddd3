"""Thinned curves: bounded, and nothing that stands out is lost, in whatever order points come."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.lines.thinning import NAN, Band, Curve, line_of, merged_bands

VALUES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=300)


@given(VALUES, st.randoms())
def test_the_least_the_greatest_and_the_last_stay(values: list[float], random: object) -> None:
    points = [(float(x), y) for x, y in enumerate(values)]
    last = points[-1]
    random.shuffle(points)  # type: ignore[attr-defined]
    curve = Curve(buckets=8)
    for place in range(0, len(points), 7):
        some = points[place : place + 7]
        curve.add(0, [x for x, _ in some], [y for _, y in some], 1)
    xs, ys = line_of(curve.ranks[0])
    assert xs == sorted(xs)
    assert len(curve.ranks[0]) <= 16
    assert (min(ys), max(ys)) == (min(values), max(values))
    assert (xs[-1], ys[-1]) == last
    assert curve.last[0] == last
    assert set(zip(xs, ys, strict=True)) <= set(points)


def test_nan_and_inf_are_marked_where_they_are() -> None:
    curve = Curve(buckets=4)
    ys = [1.0] * 50
    ys[20] = math.nan
    curve.add(3, map(float, range(50)), ys, 1)
    assert (curve.odd[3].text, curve.odd[3].x, curve.odd[3].count) == ("nan", 20.0, 1)
    assert [key * curve.width for key in curve.changed if curve.band(key).marks == NAN] == [16.0]
    assert set(line_of(curve.ranks[3])[1]) == {1.0}


def test_points_far_away_leave_the_others_apart() -> None:
    """A clock that jumps, say."""
    curve = Curve(buckets=64)
    curve.add(0, [*map(float, range(1000)), 1e12, -1e12, math.inf], [float(y) for y in range(1003)], 1)
    xs, _ = line_of(curve.ranks[0])
    assert curve.width <= 32
    assert (xs[0], xs[-1]) == (-1e12, 1e12)


def test_ranks_differ_where_they_do_and_not_where_one_is_read_in_part() -> None:
    curve = Curve(buckets=4)
    ys = [float(x % 7) for x in range(64)]
    curve.add(0, map(float, range(64)), ys, 1)
    curve.add(1, map(float, range(40)), ys[:40], 1)
    assert not any(curve.band(key).differs for key in curve.changed)
    curve.add(2, map(float, range(64)), [*ys[:63], 9.0], 2)
    assert [key for key in curve.changed if curve.band(key).differs] == [63 // curve.width]
    assert curve.band(63 // curve.width).high == 9.0


def test_only_what_has_changed_is_told() -> None:
    curve = Curve(buckets=4)
    curve.add(0, [1.0, 2.0], [1.0, 2.0], 1)
    curve.add(0, [3.0], [3.0], 2)
    assert curve.since(0) == [1.0, 2.0, 3.0]
    assert curve.since(1) == [3.0]
    curve.add(0, map(float, range(4, 20)), [0.0] * 16, 3)
    assert curve.whole_since == 3


def test_nodes_with_buckets_of_different_widths() -> None:
    fine = {0.0: Band(1, 1, differs=False), 1.0: Band(2, 2, differs=False)}
    coarse = {0.0: Band(1, 2, differs=False)}
    assert merged_bands([(0.0, fine), (2.0, coarse)]) == (2.0, {0.0: Band(1, 2, differs=False)})
    width, merged = merged_bands([(2.0, {0.0: Band(1, 5, differs=False)}), (2.0, coarse)])
    assert (width, merged[0.0].differs, merged[0.0].high) == (2.0, True, 5)
