"""What is tried with other nodes, and when there are none."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from monarch_nb.client.pools.answering import NotConnected, Way
from monarch_nb.client.pools.leasing import MOST_RACES, Outrun, tried
from monarch_nb.errors import CapacityError


def not_connected(start: str, end: str, stay: Collection[str] = ()) -> NotConnected:
    return NotConnected([Way(start, end, refused="port 1"), Way(end, start, refused="port 1")], stay)


async def test_nodes_that_the_rest_does_not_reach_are_avoided_one_after_the_other() -> None:
    said: list[str] = []

    async def attempt(avoided: Collection[str]) -> list[str]:
        for node in ("host2", "host3"):
            if node not in avoided:
                raise not_connected("host1", node, ["host1"])
        return sorted(avoided)

    assert await tried(attempt, said.append) == ["host2", "host3"]
    assert said == [f"without {node}, as nodes do not reach each other" for node in ("host2", "host3")]


async def test_when_no_others_are_free_the_first_that_was_not_reached_is_the_reason() -> None:
    async def attempt(avoided: Collection[str]) -> None:
        if len(avoided) == 2:
            raise CapacityError("nothing is free")
        raise not_connected("host1", f"host{2 + len(avoided)}", ["host1"])

    with pytest.raises(NotConnected, match="host1 can not connect to host2"):
        await tried(attempt, lambda _: None)


async def test_no_others_stand_in_for_nodes_that_stay() -> None:
    async def attempt(avoided: Collection[str]) -> None:
        assert not avoided
        raise not_connected("host1", "host2", ["host1", "host2"])

    with pytest.raises(NotConnected):
        await tried(attempt, lambda _: None)


async def test_who_is_outrun_again_and_again_is_told_by_whom() -> None:
    races = 0

    async def attempt(_: Collection[str]) -> None:
        nonlocal races
        races += 1
        raise Outrun("host1: dev holds it")

    with pytest.raises(
        CapacityError, match=rf"other clients were faster {MOST_RACES} times; host1: dev holds it"
    ) as raised:
        await tried(attempt, lambda _: None)
    assert raised.value.waiting_helps
    assert races == MOST_RACES
