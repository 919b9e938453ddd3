"""A session that stands for other nodes as well: what is this node's own, and what waits for what others say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from monarch_nb.allocator.sessions import below as module
from monarch_nb.allocator.sessions.sessions import Session
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.proto.files_pb2 import Peer


class Silent:
    """The session of a node that never answers."""

    async def write(self, request: pb.SessionRequest) -> None:
        await asyncio.Event().wait()

    def cancel(self) -> None:
        pass


@pytest.fixture
async def session(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Session]:
    """Of node 1, two ranks a node, with nodes 2 and 3 below it. What is not whole waits for ever."""
    for name in ("OUTPUT_S", "GATHER_S", "LONGEST_GATHER_S"):
        monkeypatch.setattr(module, name, 3600.0)
    made = Session()
    nodes = [pb.BranchNode(node_rank=rank, peer=Peer(address=f"n{rank}")) for rank in (2, 3)]
    branches = pb.Branches(mesh_id="m", ranks_per_node=2, node_rank=1, nodes=nodes, fan_out=2)
    made.stand_above(branches, lambda peer: Silent())
    yield made
    made.close()


def submit(**more: Any) -> pb.Submit:
    return pb.Submit(mesh_id="m", run=run_pb2.RunSpec(run_id="r", number=4), ranks=range(2, 8), **more)


def finished(*ranks: int) -> pb.Finished:
    return pb.Finished(run_id="r", results=[run_pb2.RankResult(rank=rank) for rank in ranks])


async def next_batch(session: Session) -> list[pb.SessionEvent]:
    async with asyncio.timeout(20):
        return list((await session.batches()).events)


async def test_its_own_part_of_a_run(session: Session) -> None:
    assert session.below is not None
    cursors = {rank: run_pb2.Cursor(stdout_bytes=rank) for rank in (3, 5)}
    own = session.below.submit(submit(previous={1: 2, 2: 3}, outputs={1: 9}, cursors=cursors))
    assert list(own.ranks) == [2, 3]
    assert (own.after, own.run.output) == (2, 9)
    assert dict(own.cursors) == {3: cursors[3]}


async def test_results_wait_until_all_have_come(session: Session) -> None:
    assert session.below is not None
    session.below.submit(submit())
    session.send(queued=pb.Queued(run_id="r", number=4), urgent=False)
    session.send(finished=finished(2, 3))
    waiting = asyncio.ensure_future(next_batch(session))
    await asyncio.sleep(0)
    assert not waiting.done()
    session._add(pb.SessionEvent(finished=finished(4, 5, 6, 7)))
    events = await waiting
    assert [event.WhichOneof("message") for event in events] == ["queued", "finished"]
    assert list(events[0].queued.nodes) == [1]
    assert sorted(rank for equal in events[1].finished.equal for rank in equal.ranks) == list(range(2, 8))


async def test_what_somebody_waits_for_goes_at_once(session: Session) -> None:
    session.send(finished=finished(2), urgent=False)
    session.send(queued=pb.Queued(run_id="s", number=5))
    assert len(await next_batch(session)) == 2
    session._add(pb.SessionEvent(links=pb.Links(mesh_id="m", down=[2])))
    assert list((await next_batch(session))[0].links.down) == [2]


async def test_a_client_that_does_not_read_stops_those_below(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch_nb.allocator.sessions.sessions.MAX_UNSENT_BYTES", 1000)
    text = pb.RankOutput(rank=4, items=[pb.OutputItem(stdout=b"x" * 2000)])
    session._add(pb.SessionEvent(output=pb.Output(run_id="r", ranks=[text])))
    waiting = asyncio.ensure_future(session.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    session.send(refused=pb.Refused())
    await next_batch(session)
    async with asyncio.timeout(20):
        await waiting
