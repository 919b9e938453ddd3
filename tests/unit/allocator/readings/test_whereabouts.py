"""Where ranks are: asked of those whose run lasts, once a second, and nobody waits long for an answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.allocator.readings import asking
from monarch_nb.allocator.readings.whereabouts import Whereabouts
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.allocator.supervision.supervisor import RankProcess
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
    monkeypatch.setattr(asking, "WAIT_S", 0.05)
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
    monkeypatch.setattr(asking, "INTERVAL_S", 0.0)
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
    monkeypatch.setattr(asking, "FORGOTTEN_S", 0.0)
    assert places.of(10, node.slot.running) is None
