"""The order of those who wait: fair between people, and nobody waits for ever."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.allocator.state.turns import DAY_S, Waiter, tickets

PEOPLE = ("alice", "bob", "carol")
waiters = st.builds(
    Waiter,
    key=st.uuids().map(str),
    person=st.sampled_from(PEOPLE),
    slots=st.integers(1, 64),
    came=st.integers(0, int(3 * DAY_S)).map(float),
)
lines = st.lists(waiters, max_size=8, unique_by=lambda one: one.key)
holdings = st.dictionaries(st.sampled_from(PEOPLE), st.integers(0, 64))
sizes = st.integers(0, 64)


def order(waiting: list[Waiter], held: dict[str, int], slots: int) -> list[Waiter]:
    given = tickets(waiting, held, slots)
    return sorted(waiting, key=lambda one: (given[one.key], one.key))


@given(lines, sizes)
def test_of_people_who_hold_equally_much_who_came_first_is_first(waiting: list[Waiter], slots: int) -> None:
    one_each = [replace(one, person=f"p{number}") for number, one in enumerate(waiting)]
    held = {one.person: 3 for one in one_each}
    assert order(one_each, held, slots) == sorted(one_each, key=lambda one: (one.came, one.key))


@given(lines, holdings, sizes)
def test_nobody_is_passed_by_who_comes_a_day_later(waiting: list[Waiter], held: dict[str, int], slots: int) -> None:
    given = tickets(waiting, held, slots)
    for one in waiting:
        for other in waiting:
            if other.came > one.came + DAY_S:
                assert given[one.key] < given[other.key]


@given(lines, holdings, sizes, st.sampled_from(PEOPLE), st.integers(1, 64))
def test_who_gives_back_is_never_further_back_for_it(
    waiting: list[Waiter], held: dict[str, int], slots: int, person: str, given_back: int
) -> None:
    before = order(waiting, held, slots)
    after = order(waiting, {**held, person: max(0, held.get(person, 0) - given_back)}, slots)
    for one in waiting:
        if one.person == person:
            assert after.index(one) <= before.index(one)


@given(st.data(), lines, holdings, sizes)
def test_all_nodes_have_one_order(data: st.DataObject, waiting: list[Waiter], held: dict[str, int], slots: int) -> None:
    mixed = data.draw(st.permutations(waiting))
    assert order(waiting, held, slots) == order(mixed, held, slots)


def test_ten_requests_of_one_person_are_not_ten_turns() -> None:
    alices = [Waiter(f"a{number}", "alice", 4, came=float(number)) for number in range(10)]
    bob = Waiter("b", "bob", 4, came=60.0)
    assert order([*alices, bob], {}, 32)[:3] == [alices[0], bob, alices[1]]
