"""Where ranks are: asked of those whose run lasts, once a second, and nobody waits long for an answer."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.allocator.processes.supervisor import RankProcess
from monarch_nb.allocator.readings import ranks
from monarch_nb.allocator.readings.ranks import MAX_ACTORS, MAX_FAILURE_CHARACTERS, RankActors, Whereabouts
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2, state_pb2
from monarch_nb.proto import worker_pb2 as wire

COLLECTIVE = run_pb2.Where.STATE_COLLECTIVE


@dataclass
class Link:
    """A rank's control thread. `silent`: it does not answer."""

    where: run_pb2.Where
    asked: int = 0
    silent: bool = False
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    async def control(self, request: wire.ControlRequest, timeout_s: float) -> wire.ControlReply | None:
        self.asked += 1
        assert request.HasField("where")
        if self.silent:
            await self.answered.wait()
        return wire.ControlReply(where=self.where)


class Node:
    """Two ranks, pids 10 and 11; rank 0 runs "a"."""

    def __init__(self) -> None:
        self.state = NodeState(2)
        self.state.reserve(pb.ReserveRequest(reservation_id="r", name="dev", owner="me", procs=2))
        self.state.add_mesh(pb.SpawnRequest(mesh_id="m", reservation_id="r", ranks=2, world_size=2))
        for rank in (0, 1):
            self.state.rank_ready("m", rank)
        run = run_pb2.RunSpec(run_id="a")
        self.state.submit(pb.Submit(mesh_id="m", run=run, ranks=[0], all_ranks=[0], give_number=True), 1.0)
        self.links = [
            Link(run_pb2.Where(state=COLLECTIVE, run_id="a", collective="all_reduce", line="train.py:41")),
            Link(run_pb2.Where(state=run_pb2.Where.STATE_IDLE)),
        ]
        self.supervisor = SimpleNamespace(ranks={("m", rank): self._process(rank) for rank in (0, 1)})

    def _process(self, rank: int) -> Any:
        record = state_pb2.RankRecord(mesh_id="m", rank=rank, process=state_pb2.ProcessIdentity(pid=10 + rank))
        return RankProcess("m", rank, record, self.links[rank], watch=None, oom_kills_before=0)  # type: ignore[arg-type]

    def began(self, ago_s: float) -> None:
        self.state.begun("m", "a", time.time() - ago_s)

    @property
    def slot(self) -> Any:
        return self.state.meshes["m"].ranks[0]


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(ranks, "WAIT_S", 0.05)
    return Node()


async def test_a_run_is_asked_about_when_it_lasts(node: Any) -> None:
    places = Whereabouts(node.state, node.supervisor.ranks)
    node.began(ago_s=0.1)
    await places.refresh()
    assert (node.links[0].asked, places.of(10, node.slot.running)) == (0, None)
    node.state.meshes["m"].runs["a"].started_at -= 5
    await places.refresh()
    where = places.of(10, node.slot.running)
    assert where is not None
    assert (where.collective, where.line) == ("all_reduce", "train.py:41")
    await places.refresh()
    assert [link.asked for link in node.links] == [1, 0], "once a second, and no idle one"


async def test_who_does_not_answer_is_waited_for_a_little_and_not_asked_again_meanwhile(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "INTERVAL_S", 0.0)
    places = Whereabouts(node.state, node.supervisor.ranks)
    node.began(ago_s=5)
    node.links[0].silent = True
    async with asyncio.timeout(5):
        await places.refresh()
        await places.refresh()
    assert node.links[0].asked == 1
    assert places.of(10, node.slot.running) is None
    node.links[0].answered.set()
    await asyncio.sleep(0.01)
    assert places.of(10, node.slot.running) is not None, "a late answer counts"
    await places.refresh()
    assert node.links[0].asked == 2


async def test_an_answer_about_another_run_or_long_ago_is_none(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    places = Whereabouts(node.state, node.supervisor.ranks)
    node.began(ago_s=5)
    await places.refresh()
    node.slot.running = "b"
    assert places.of(10, node.slot.running) is None
    node.slot.running = "a"
    assert places.of(11, node.slot.running) is None
    monkeypatch.setattr(ranks, "FORGOTTEN_S", 0.0)
    assert places.of(10, node.slot.running) is None


@dataclass
class ActorLink:
    """A rank's control thread, and when it got mail. `stuck`: it does not answer."""

    actors: list[run_pb2.ActorStatus] = field(default_factory=list)
    asked: int = 0
    stuck: bool = False
    mail: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(sent_s=-math.inf))

    async def control(self, request: wire.ControlRequest, timeout_s: float) -> wire.ControlReply | None:
        self.asked += 1
        assert request.HasField("actors")
        return None if self.stuck else wire.ControlReply(actors=self.actors)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> ActorLink:
    monkeypatch.setattr(ranks, "INTERVAL_S", 0.0)
    return ActorLink()


def readings_of(link: ActorLink, **facts: Any) -> RankActors:
    """Of one rank, pid 10."""
    record = state_pb2.RankRecord(mesh_id="m", process=state_pb2.ProcessIdentity(pid=10), **facts)
    return RankActors({("m", 0): RankProcess("m", 0, record, link, watch=None, oom_kills_before=0)})  # type: ignore[arg-type]


async def test_a_rank_with_actors_is_asked_each_time_and_scripts_never(link: ActorLink) -> None:
    await readings_of(link, script_of="m").refresh()
    assert link.asked == 0
    link.actors = [run_pb2.ActorStatus(name="trainers")]
    readings = readings_of(link)
    await readings.refresh()
    link.actors[0].waiting = 3
    await readings.refresh()
    (actor,), more = readings.of(10)
    assert (actor.name, actor.waiting, more, link.asked) == ("trainers", 3, 0, 2)


async def test_a_rank_without_is_not_asked_again_until_it_gets_mail(link: ActorLink) -> None:
    readings = readings_of(link)
    await readings.refresh()
    await readings.refresh()
    assert link.asked == 1
    link.mail.sent_s = time.monotonic()
    await readings.refresh()
    assert link.asked == 2


async def test_a_rank_that_is_stuck_keeps_what_it_said_for_a_while(
    link: ActorLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.actors = [run_pb2.ActorStatus(name="trainers", running="step", running_s=5.0)]
    readings = readings_of(link)
    await readings.refresh()
    link.stuck = True
    await readings.refresh()
    (actor,), _ = readings.of(10)
    assert actor.running == "step"
    assert actor.running_s > 5.0, "its time goes on"
    monkeypatch.setattr(ranks, "FORGOTTEN_S", -1.0)
    assert readings.of(10) == ((), 0)


async def test_of_many_the_failed_and_the_busy_are_told(link: ActorLink) -> None:
    link.actors = [run_pb2.ActorStatus(name=str(number)) for number in range(MAX_ACTORS + 5)]
    link.actors[-1].failure = "Traceback\n" + "x" * 1000
    link.actors[-2].running = "step"
    readings = readings_of(link)
    await readings.refresh()
    told, more = readings.of(10)
    assert ([actor.name for actor in told[:3]], len(told), more) == (["36", "35", "0"], MAX_ACTORS, 5)
    assert told[0].failure == "x" * MAX_FAILURE_CHARACTERS
