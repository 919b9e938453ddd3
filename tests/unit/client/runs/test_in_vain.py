"""When the ranks of a run wait in vain for one whose code has failed. Rank 3 has, unless it is said otherwise."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from monarch_nb.client.runs.mismatches import wait_in_vain
from monarch_nb.proto import run_pb2

DEFAULT, LEFT, RIGHT = "the default group", "group left (ranks 0-1)", "group right (ranks 2-3)"
SIZE = 4
Where = run_pb2.Where


def waits(rank: int, count: int = 5, collective: str = "all_reduce", group: str = DEFAULT, **other: Any) -> Where:
    """Return where a rank is that waits in a call of a group."""
    peer, calls = other.pop("peer", None), {group: count} | other.pop("calls", {})
    call = run_pb2.Call(collective=collective, group=group, peer=peer)
    told = {"world_size": SIZE, "world_rank": rank, **other}
    return Where(state=Where.STATE_COLLECTIVE, collective=collective, call=call, calls=calls, **told)


def makes_group(rank: int, size: int = SIZE) -> Where:
    """Return where a rank is that waits for all to make the default group."""
    place = Where.STATE_COLLECTIVE
    return Where(state=place, collective="init_process_group", world_size=size, world_rank=rank)


def done(rank: int, count: int = 4, size: int = SIZE, **other: Any) -> Where:
    """Return where a rank is that has ended the run."""
    calls = {DEFAULT: count} | other.pop("calls", {}) if size else {}
    return Where(state=Where.STATE_IDLE, calls=calls, world_size=size, world_rank=rank if size else 0, **other)


def computes(rank: int, **other: Any) -> Where:
    """Return where a rank is that goes on."""
    return Where(state=Where.STATE_RUNNING, calls={DEFAULT: 4}, world_size=SIZE, world_rank=rank, **other)


def in_vain(*where: Where, ranks: Collection[int] = range(SIZE), failed: Collection[int] = (3,)) -> bool:
    left = [rank for rank in ranks if rank not in failed and where[rank].state != Where.STATE_IDLE]
    return wait_in_vain(dict(enumerate(where)), failed, left, ranks, SIZE)


THREE = [waits(0), waits(1), waits(2)]


def test_all_others_wait_for_the_one_that_failed() -> None:
    assert in_vain(*THREE, done(3))
    assert in_vain(*THREE, done(3, size=0)), "it has destroyed its groups"
    assert in_vain(waits(0), waits(1), done(2), done(3)), "another one has finished"
    assert in_vain(*[makes_group(rank) for rank in range(3)], done(3, size=0)), "a group that all must make"


@pytest.mark.parametrize(
    "third",
    [
        computes(2),
        waits(2, handles_s=1),
        waits(2, busy_besides=True),
        waits(2, collective="store wait", group=""),
        waits(2, count=4),
    ],
    ids=["computes", "handles an interrupt", "saves beside", "waits for whatever", "is in a call that all have made"],
)
def test_no_rank_is_freed_while_another_goes_on(third: Where) -> None:
    assert not in_vain(waits(0), waits(1), third, done(3))


@pytest.mark.parametrize(
    "fourth",
    [computes(3), waits(3, count=4), done(3, busy_besides=True), done(3, count=5)],
    ids=["runs another cell", "waits in another cell", "debugged", "has made the call"],
)
def test_one_that_failed_may_still_be_joined(fourth: Where) -> None:
    assert not in_vain(*THREE, fourth)


def test_who_waits_for_one_that_only_finished_is_left_alone() -> None:
    assert not in_vain(*THREE, done(3), failed=())


def test_groups_of_some_ranks() -> None:
    right, failed = waits(2, group=RIGHT, calls={DEFAULT: 4}), done(3, calls={RIGHT: 4})
    slow = [waits(rank, count=8, group=LEFT, calls={DEFAULT: 4}) for rank in (0, 1)]
    assert in_vain(waits(0, calls={LEFT: 7}), slow[1], right, failed), "1 waits for 0, which waits for all"
    assert not in_vain(*slow, right, failed), "both have made that call: it may only take long"


def test_peers() -> None:
    """A pipeline: 0 sends to 1, which receives from 2, which receives from 3."""
    row = [waits(0, collective="send", peer=1), *(waits(rank, collective="recv", peer=rank + 1) for rank in (1, 2))]
    assert in_vain(*row, done(3))
    assert not in_vain(waits(0, collective="recv"), *row[1:], done(3)), "it receives from any rank"
    pair = waits(0, collective="send", peer=1), waits(1, collective="recv", peer=0)
    assert not in_vain(*pair, row[2], done(3)), "these two meet"


def test_ranks_of_a_cell_that_are_a_world_of_their_own() -> None:
    """`init_process_group(rank=[1, 3].index(rank), world_size=2)` in a cell on ranks 1 and 3; or other numbers."""
    own = {"size": 2}
    others = done(0, size=0), done(2, size=0)
    waiting = waits(0, world_size=2, count=5)
    assert in_vain(others[0], waiting, others[1], done(1, **own), ranks=(1, 3))
    assert in_vain(others[0], makes_group(0, 2), others[1], done(0, size=0), ranks=(1, 3))
    receives = waits(0, world_size=2, collective="recv", peer=1)
    assert in_vain(others[0], receives, others[1], done(1, **own), ranks=(1, 3))
    apart = [waits(0, world_size=2), waits(1, world_size=2), waits(0, world_size=2), done(1, **own)]
    assert not in_vain(*apart), "two worlds of two: nobody knows who is in which"


def test_ranks_that_another_cell_runs_on() -> None:
    some = (2, 3)
    assert in_vain(done(0), done(1), waits(2), done(3), ranks=some)
    assert in_vain(waits(0), waits(1), waits(2), done(3), ranks=some), "they wait in vain as well"
    assert not in_vain(computes(0), done(1), waits(2), done(3), ranks=some), "it uses the group that would be broken"
    actor = done(1, busy_besides=True)
    assert not in_vain(done(0), actor, waits(2), done(3), ranks=some), "so may an actor"
    apart = Where(state=Where.STATE_RUNNING)
    assert in_vain(apart, apart, waits(0, world_size=2), done(1, size=2), ranks=some), "they have no group"


def test_what_is_not_known_frees_nobody() -> None:
    old = Where(state=Where.STATE_COLLECTIVE, call=run_pb2.Call(collective="all_reduce", group=DEFAULT))
    assert not in_vain(old, old, old, done(3)), "ranks of an older version"
    assert not wait_in_vain({0: THREE[0], 1: THREE[1], 3: done(3)}, [3], [0, 1, 2], range(SIZE), SIZE)
    assert not wait_in_vain({0: THREE[0], 1: THREE[1], 2: THREE[2]}, [3], [0, 1, 2], range(SIZE), SIZE)
    assert not wait_in_vain({}, [3], [], range(SIZE), SIZE)
