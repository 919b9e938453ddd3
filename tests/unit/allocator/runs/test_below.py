"""A session that stands for other nodes as well: what is this node's own, and what waits for what others say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from monarch_nb.allocator.runs import below as module
from monarch_nb.allocator.runs import sessions
from monarch_nb.allocator.runs.sessions import Session
from monarch_nb.branches.folding import ranks_finished
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
    made.stand_above(branches, 8, lambda peer: Silent())
    yield made
    made.close()


def below_of(session: Session) -> module.Below:
    assert session.below is not None
    return session.below


def submit(**more: Any) -> pb.Submit:
    return pb.Submit(mesh_id="m", run=run_pb2.RunSpec(run_id="r", number=4), all_ranks=range(2, 8), **more)


def finished(*ranks: int) -> pb.Finished:
    return pb.Finished(run_id="r", results=[run_pb2.RankResult(rank=rank) for rank in ranks])


async def next_batch(session: Session) -> list[pb.SessionEvent]:
    async with asyncio.timeout(20):
        return list((await session.batches()).events)


async def next_kinds(session: Session) -> list[str | None]:
    return [event.WhichOneof("message") for event in await next_batch(session)]


def of_rank_4(*items: pb.OutputItem) -> pb.SessionEvent:
    return pb.SessionEvent(output=pb.Output(run_id="r", ranks=[pb.RankOutput(rank=4, items=items)]))


async def test_results_wait_until_all_have_come(session: Session) -> None:
    below_of(session).submit(submit())
    session.send(queued=pb.Queued(run_id="r", number=4), urgent=False)
    session.send(finished=finished(2, 3))
    waiting = asyncio.ensure_future(next_batch(session))
    await asyncio.sleep(0)
    assert not waiting.done()
    session._add(pb.SessionEvent(finished=finished(4, 5, 6, 7)))
    events = await waiting
    assert [event.WhichOneof("message") for event in events] == ["queued", "finished"]
    assert list(events[0].queued.nodes.bounds) == [1, 2]
    assert list(ranks_finished(events[1].finished)) == list(range(2, 8))


def stop_the_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """However long a busy machine takes, no time passes but what the test adds."""
    loop = asyncio.get_running_loop()
    now_s = [loop.time()]
    monkeypatch.setattr(loop, "time", lambda: now_s[0])
    return now_s


@pytest.mark.parametrize(("nodes", "lasted_s", "wait_s"), [(3, 0.0, 1.0), (3, 3600.0, 0.5), (1_000, 3600.0, 2.0)])
async def test_a_part_of_the_results_waits_for_the_rest_but_not_for_long(
    nodes: int, lasted_s: float, wait_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = stop_the_clock(monkeypatch)
    session = Session()
    below = [pb.BranchNode(node_rank=rank, peer=Peer(address=f"n{rank}")) for rank in range(1, nodes)]
    session.stand_above(pb.Branches(mesh_id="m", ranks_per_node=1, nodes=below, fan_out=2), nodes, lambda _: Silent())
    below_of(session).submit(pb.Submit(mesh_id="m", run=run_pb2.RunSpec(run_id="r", number=4)))
    now_s[0] += lasted_s
    first = pb.Finished(run_id="r", results=[run_pb2.RankResult(rank=2, outcome=run_pb2.OUTCOME_OK)])
    assert below_of(session).delay_s(pb.SessionEvent(finished=first)) == pytest.approx(wait_s, abs=0.01)
    session.close()


async def test_what_somebody_waits_for_goes_at_once(session: Session) -> None:
    session.send(finished=finished(2), urgent=False)
    session.send(queued=pb.Queued(run_id="s", number=5))
    assert len(await next_batch(session)) == 2
    session._add(pb.SessionEvent(links=pb.Links(mesh_id="m", down=[2])))
    assert list((await next_batch(session))[0].links.down) == [2]


async def flood(session: Session) -> None:
    """Have a flood of many ranks come and be sent."""
    text = b"".join(b"%d\n" % number for number in range(1000))
    told = [pb.RankOutput(rank=rank, items=[pb.OutputItem(stdout=b"%d\n" % rank + text)]) for rank in range(64)]
    session._add(pb.SessionEvent(output=pb.Output(run_id="r", ranks=told)))
    session.send(refused=pb.Refused())
    await next_batch(session)


async def test_what_is_held_back_after_a_flood_goes_with_a_result_and_with_nothing_else(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_the_clock(monkeypatch)
    await flood(session)
    session._add(of_rank_4())
    session.send(refused=pb.Refused())
    assert await next_kinds(session) == ["refused"]
    session._add(pb.SessionEvent(finished=finished(4)), urgent=True)
    assert await next_kinds(session) == ["output", "finished"]


async def test_a_part_of_the_results_is_held_back_after_a_flood_but_no_failure(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    stop_the_clock(monkeypatch)
    below_of(session).submit(submit())
    await flood(session)
    session._add(of_rank_4())
    for rank, outcome, kinds in (
        (4, run_pb2.OUTCOME_OK, ["refused"]),
        (5, run_pb2.OUTCOME_ERROR, ["output", "finished", "refused"]),
    ):
        result = run_pb2.RankResult(rank=rank, outcome=outcome)
        session._add(pb.SessionEvent(finished=pb.Finished(run_id="r", results=[result])))
        session.send(refused=pb.Refused())
        assert await next_kinds(session) == kinds
    session._add(of_rank_4())
    session.send(refused=pb.Refused())
    assert await next_kinds(session) == ["output", "refused"], "the flood is over"


async def test_a_client_that_does_not_read_stops_those_below(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_UNSENT_BYTES", 1000)
    session._add(of_rank_4(pb.OutputItem(stdout=b"x" * 2000)))
    waiting = asyncio.ensure_future(session.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    session.send(refused=pb.Refused())
    await next_batch(session)
    async with asyncio.timeout(20):
        await waiting
