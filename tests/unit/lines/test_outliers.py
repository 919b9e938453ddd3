import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.lines.outliers import may_be_outside, outside


@pytest.mark.parametrize("count", [4, 5, 8, 9, 16, 128])
def test_of_numbers_that_spread_by_chance_hardly_one_is_far(count: int) -> None:
    chance = random.Random(count)
    sets = 2_000 if count < 100 else 200
    normal = sum(bool(outside([chance.gauss(100, 10) for _ in range(count)], 1)) for _ in range(sets))
    assert normal <= 2, f"of {sets}"
    skewed = sum(bool(outside([chance.lognormvariate(0, 0.5) for _ in range(count)], 1)) for _ in range(sets))
    assert skewed <= sets / 100


@pytest.mark.parametrize("count", [4, 5, 8, 9, 16, 128])
def test_one_that_is_another_kind_of_number_is(count: int) -> None:
    chance = random.Random(count)
    for _ in range(20):
        others = [chance.gauss(100, 0.1) for _ in range(count - 1)]
        assert outside([*others, 900.0], 1, share=0.02) == [count - 1]
        assert outside([-900.0, *others], 1, share=0.02) == [0]


def test_far_is_at_most_so_many_at_both_ends() -> None:
    values = [-500.0, *range(14), 900.0]
    assert outside(values, 2) == [0, 15]
    assert outside(values, 1) == [], "the other one is among the others then"
    assert outside([1.0, 2.0, 900.0], 1, [40, 40, 10]) == [], "10 ranks have it"
    assert outside([1.0, 2.0, 900.0], 10, [40, 40, 10]) == [2]


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=400, unique=True), st.integers(1, 10))
def test_the_short_look_misses_none(values: list[float], most: int) -> None:
    assert may_be_outside(values, most, (min(values), max(values))) or not outside(values, most)
