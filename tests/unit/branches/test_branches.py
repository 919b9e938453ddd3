"""The sessions with those directly below: who is told what, and who is adopted by whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from monarch_nb.branches import branches as module
from monarch_nb.branches.branches import Branches
from monarch_nb.errors import CertificateRefused, MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.proto.files_pb2 import Peer
from monarch_nb.rpc.status import METADATA_KEY, error_from_json, error_to_json


class FakeStream:
    """A session with a node, as gRPC has them."""

    def __init__(self) -> None:
        self.sent: list[pb.SessionRequest] = []
        self.changed = asyncio.Event()
        self._coming: asyncio.Queue[object] = asyncio.Queue()
        self.ended = asyncio.Event()

    async def write(self, request: pb.SessionRequest) -> None:
        self.sent.append(request)
        self.changed.set()

    async def read(self) -> object:
        if isinstance(come := await self._coming.get(), grpc.aio.AioRpcError):
            raise come
        return come

    def cancel(self) -> None:
        self.ended.set()

    def say(self, *events: pb.SessionEvent) -> None:
        self._coming.put_nowait(pb.SessionEvents(events=events))

    def refuse(self, error: MonarchNbError) -> None:
        metadata = grpc.aio.Metadata((METADATA_KEY, error_to_json(error).encode()))
        self._coming.put_nowait(grpc.aio.AioRpcError(grpc.StatusCode.PERMISSION_DENIED, grpc.aio.Metadata(), metadata))

    async def gets(self, kind: str) -> Any:
        """Wait until it was sent a message of a kind; return the last."""
        async with asyncio.timeout(20):
            while not (found := [getattr(each, kind) for each in self.sent if each.HasField(kind)]):
                self.changed.clear()
                await self.changed.wait()
        return found[-1]


class Nodes:
    """Fake nodes, each with the sessions that were opened to it."""

    def __init__(self) -> None:
        self.streams: dict[str, list[FakeStream]] = {}
        self.refusing: dict[str, MonarchNbError] = {}
        self.changed = asyncio.Event()

    def open_session(self, peer: Peer) -> FakeStream:
        stream = FakeStream()
        self.streams.setdefault(peer.address, []).append(stream)
        if peer.address in self.refusing:
            stream.refuse(self.refusing[peer.address])
        else:
            stream.say(pb.SessionEvent(opened=pb.Opened()))
        self.changed.set()
        return stream

    async def opened(self, address: str, times: int = 1) -> FakeStream:
        """Wait until a node has been asked for so many sessions; return the last."""
        async with asyncio.timeout(20):
            while len(self.streams.get(address, [])) < times:
                self.changed.clear()
                await self.changed.wait()
        return self.streams[address][-1]


class Tree:
    """Nodes 1 to 4 below this process, node 2 below 1 and node 4 below 3."""

    def __init__(self) -> None:
        self.nodes, self.came = Nodes(), list[pb.SessionEvent]()
        self.heard = asyncio.Event()
        nodes = [pb.BranchNode(node_rank=rank, peer=Peer(address=f"n{rank}")) for rank in range(1, 5)]
        parts = [(nodes[0], [nodes[1]]), (nodes[2], [nodes[3]])]

        def on_event(event: pb.SessionEvent) -> None:
            self.came.append(event)
            self.heard.set()

        async def room() -> None:
            pass

        self.branches = Branches("m", 1, 2, parts, self.nodes.open_session, pb.Open(client_id="c"), on_event, room)

    async def hears(self, condition: Callable[[pb.SessionEvent], bool]) -> None:
        async with asyncio.timeout(20):
            while not any(map(condition, self.came)):
                self.heard.clear()
                await self.heard.wait()


@pytest.fixture
async def tree(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Tree]:
    monkeypatch.setattr(module, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(module, "LONGEST_RETRY_S", 0.001)
    made = Tree()
    yield made
    made.branches.close()


async def heads(tree: Tree) -> dict[int, FakeStream]:
    """Return the sessions with nodes 1 and 3, which know who is below them."""
    streams = {head: await tree.nodes.opened(f"n{head}") for head in (1, 3)}
    for stream in streams.values():
        await stream.gets("branches")
    return streams


def submit(ranks: range = range(1, 5)) -> pb.Submit:
    return pb.Submit(mesh_id="m", run=run_pb2.RunSpec(run_id="r", number=1), all_ranks=ranks)


async def test_each_head_learns_who_is_below_it_and_gets_its_part(tree: Tree) -> None:
    tree.branches.submit(submit())
    for head, below in ((1, 2), (3, 4)):
        stream = await tree.nodes.opened(f"n{head}")
        told = await stream.gets("branches")
        assert (told.node_rank, [node.node_rank for node in told.nodes]) == (head, [below])
        assert list((await stream.gets("submit")).all_ranks) == [1, 2, 3, 4]
    assert tree.nodes.streams.keys() == {"n1", "n3"}
    deaths = [pb.RankDied(mesh_id=mesh, rank=rank) for mesh, rank in (("other", 1), ("m", 2))]
    stream.say(*(pb.SessionEvent(rank_died=death) for death in deaths))
    await tree.hears(lambda event: event.HasField("rank_died"))
    died = [event.rank_died.rank for event in tree.came if event.HasField("rank_died")]
    assert died == [2], "deaths of other meshes are not passed on"


async def test_sessions_with_those_that_were_adopted_end_when_their_head_is_back(tree: Tree) -> None:
    tree.nodes.refusing["n1"] = CertificateRefused("not yet")
    (await tree.nodes.opened("n1")).refuse(tree.nodes.refusing["n1"])
    adopted = await tree.nodes.opened("n2")
    tree.nodes.refusing.clear()
    await asyncio.wait_for(adopted.ended.wait(), 20)


async def test_another_node_gives_a_number_above_those_that_are_known(tree: Tree) -> None:
    streams, run = await heads(tree), submit(range(3, 5))
    run.run.number, run.give_number = 0, True
    tree.branches.submit(run, numbered_by=1)
    assert (await streams[1].gets("submit")).give_number, "although it has no rank of it"
    tree.branches.number_by(tree.branches.runs["r"], 3, newest=1000)
    told = await streams[3].gets("submit")
    assert (told.run.number, told.give_number, told.newest) == (0, True, 1000)


async def test_what_is_for_some_nodes_goes_to_their_branches_only(tree: Tree) -> None:
    streams = await heads(tree)
    tree.branches.tell(pb.SessionRequest(cancel=pb.Cancel(run_id="r", nodes=[4])), [4])
    await streams[3].gets("cancel")
    tree.branches.submit(submit(range(1, 3)))
    await streams[1].gets("submit")
    assert not any(request.HasField("cancel") for request in streams[1].sent)
    assert not any(request.HasField("submit") for request in streams[3].sent)
    tree.branches.look(pb.Look(mesh_id="m", look_id="l", ranks=[1, 2, 4], of_run="r"))
    asked = await streams[1].gets("look")
    assert (list(asked.ranks), asked.look_id, asked.of_run) == ([1, 2], "l", "r")
    assert list((await streams[3].gets("look")).ranks) == [4]


async def test_what_was_collected_goes_with_the_next_message(tree: Tree) -> None:
    stream = await tree.nodes.opened("n1")
    await stream.gets("branches")
    quiet = submit()
    quiet.quiet = True
    tree.branches.submit(quiet)
    results = [pb.EqualResults(ranks=pb.NumberRanges(bounds=(1, 5)), durations_s=[0.0] * 4)]
    stream.say(pb.SessionEvent(finished=pb.Finished(run_id="r", equal=results)))
    await tree.hears(lambda event: event.HasField("finished"))
    tree.branches.collected(["r"])
    tree.branches.tell(pb.SessionRequest(end_calls=pb.EndCalls(run_id="s")))
    await stream.gets("end_calls")
    assert [list(request.collected) for request in stream.sent if request.HasField("end_calls")] == [["r"]]
    assert not tree.branches.runs, "nothing of it is wanted any more"


async def test_who_waits_for_a_node_that_does_not_let_us_in_is_told_why(tree: Tree) -> None:
    """Once may be for a certificate that has been replaced meanwhile."""
    tree.branches.submit(submit(range(3, 5)))
    tree.nodes.refusing = {"n1": CertificateRefused("not of this run"), "n3": CertificateRefused("was revoked")}
    for head in ("n1", "n3"):
        (await tree.nodes.opened(head)).refuse(tree.nodes.refusing[head])
    await tree.nodes.opened("n1", 4)
    await tree.hears(lambda event: event.HasField("refused"))
    told = {str(error_from_json(event.refused.error_json)) for event in tree.came if event.HasField("refused")}
    assert told == {"was revoked"}


async def test_who_is_refused_once_goes_on(tree: Tree) -> None:
    tree.branches.submit(submit())
    for times in (1, 2):
        stream = await tree.nodes.opened("n3", times)
        assert list((await stream.gets("submit")).all_ranks) == [1, 2, 3, 4]
        stream.refuse(CertificateRefused("was revoked"))
    await (await tree.nodes.opened("n3", 3)).gets("submit")
    assert not any(event.HasField("refused") for event in tree.came)
