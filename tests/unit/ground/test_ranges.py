"""Sets of numbers as ranges, against sets of numbers as they are."""

from __future__ import annotations

import random

from monarch_nb.ground.ranges import Ranges


def test_they_are_what_sets_are() -> None:
    for seed in range(10):
        chosen = random.Random(seed)
        first, second = ({chosen.randrange(40) for _ in range(chosen.randrange(60))} for _ in range(2))
        one, other = Ranges.of(first), Ranges.of(tuple(second))
        assert (list(one), len(one), bool(one)) == (sorted(first), len(first), bool(first))
        assert {number for number in range(-1, 42) if number in one} == first
        assert (set(one | other), set(one & other)) == (first | second, first & second)
        assert set(one - other) == first - second
        assert ((one <= other), (one == other)) == ((first <= second), (first == second))
        assert one - other | one & other == one, "what is equal is written alike"
        assert Ranges(one.bounds) == one


def test_numbers_next_to_each_other_are_one_range() -> None:
    assert Ranges.of(range(3, 9)).bounds == Ranges.of([8, 3, 5, 4, 7, 6, 6]).bounds == (3, 9)
    assert Ranges.of(range(4, 4)).bounds == ()
    assert Ranges.of(range(0, 6, 2)).bounds == (0, 1, 2, 3, 4, 5)
    assert Ranges.joined([(4, 6), (0, 2), (1, 4)]).bounds == (0, 6)
    assert Ranges.joined([(4, 4), (6, 5), (1, 2)]).bounds == (1, 2), "others are none"
