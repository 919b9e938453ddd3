"""The sentence that says what a call waits behind."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from monarch_nb.actor.engine.outside import Address, CallState
from monarch_nb.client.actors.behind import Behind, behind
from monarch_nb.client.connections.events import Notice
from monarch_nb.client.pools.actor_infos import ActorInfo, grouped


def call(*ranks: int) -> CallState:
    places = {rank: Address("node", f"m/{rank}") for rank in ranks}
    return CallState(1, "trainers.step", {"m": ("run", 3, 0)}, time.monotonic() - 5, places)


def actor(rank: int, **facts: object) -> ActorInfo:
    return ActorInfo("main", rank, "trainers", "__main__.Trainer", "trainers-1", **facts)  # type: ignore[arg-type]


class TestBehind:
    def test_what_runs_before_it_and_what_it_does_itself(self) -> None:
        infos = {3: [actor(3, running="load", running_s=12.0, waiting=4)]}
        assert behind(call(3), "m", infos) == "trainers.step: rank 3 runs 'load' for 12 s, 4 messages wait there"
        infos = {rank: [actor(rank, running="step", running_s=4.0, where="train.py:41")] for rank in (0, 1)}
        assert behind(call(0, 1), "m", infos) == "trainers.step: ranks 0-1 run it at train.py:41 for 4.0 s"
        assert behind(call(0), "another", {}) == "", "nothing of other meshes"

    def test_what_waits_is_counted_rank_by_rank(self) -> None:
        infos = {rank: [actor(rank, running="load", running_s=4.0, waiting=1)] for rank in (0, 1)}
        told = "trainers.step: ranks 0-1 run 'load' for 4.0 s, 1 message waits on each"
        assert behind(call(0, 1), "m", infos) == told
        infos[1] = [actor(1, running="load", running_s=4.0, waiting=3)]
        assert behind(call(0, 1), "m", infos).endswith("up to 3 messages wait on each")

    def test_ranks_that_differ_are_told_apart(self) -> None:
        infos = {0: [actor(0)], 1: [actor(1, failure="ValueError: x")]}
        told = "trainers.step: rank 0 is idle; rank 1 has failed; rank 2 does not answer"
        assert behind(call(0, 1, 2), "m", infos) == told

    def test_who_is_replaced_is_said_to_hold_the_new_one_up(self) -> None:
        old = actor(0, running="sleep", where="train.py:3", is_ending=True)
        told = "trainers.step: rank 0 is not made yet, while the one before ends at train.py:3"
        assert behind(call(0), "m", {0: [old, actor(0, waiting=2)]}) == f"{told}, 2 messages wait there"
        assert (
            behind(call(0), "m", {0: [old, actor(0, running="step", running_s=4.0)]})
            == "trainers.step: rank 0 runs it for 4.0 s"
        )

    def test_a_bootstrap_is_said_to_hold_all_up(self) -> None:
        kind = "monarch_nb.actor.hosts.Bootstrap"
        first = ActorInfo("main", 0, "bootstrap", kind, "b-1", running="run", running_s=12.0, where="setup.py:3")
        told = "trainers.step: rank 0 is not made yet, while the bootstrap runs at setup.py:3"
        infos = {0: [first, actor(0, waiting=1)]}
        assert behind(call(0), "m", infos) == f"{told} for 12 s, 1 message waits there"
        made_by_it = replace(call(0), title="bootstrap.run")
        assert behind(made_by_it, "m", infos) == "bootstrap.run: rank 0 runs it at setup.py:3 for 12 s"


def test_actors_that_do_the_same_are_one_group() -> None:
    infos = [actor(rank, running="step", running_s=float(rank), waiting=rank) for rank in range(3)]
    [group, other] = grouped([*infos, actor(3)])
    assert (group.ranks, group.waiting, group.running_s) == ((0, 1, 2), 2, 2.0)
    assert other.ranks == (3,)
    processes = [actor(rank // 2, pid=70 + rank, own_rank=rank) for rank in range(4)]  # two on each rank
    assert [group.ranks for group in grouped(processes)] == [(0, 1, 2, 3)]


class FakeRun:
    """A run of calls, as `Behind` sees it."""

    def __init__(self) -> None:
        self.id, self.mesh = "run", SimpleNamespace(id="m")
        self.told: list[Notice] = []

    def emit(self, notice: Notice) -> None:
        self.told.append(notice)


async def test_what_was_said_of_an_interrupted_run_is_not_taken_back_when_its_calls_are_answered() -> None:
    """Its cell decides, which is not over yet."""
    run: Any = FakeRun()
    looker = Behind(lambda _: None)
    looker.look([call(3)], [run])
    assert looker._asking is not None
    await asyncio.wait_for(looker._asking, 10)
    assert len(run.told) == 1
    looker.look([], [])
    await asyncio.sleep(0)
    assert len(run.told) == 1
    looker.look([], [run])
    assert len(run.told) == 2, "what goes on, and waits no more"
