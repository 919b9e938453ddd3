"""A node between its state and its processes, which are none: what tests of its parts have in common."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.allocator import node as node_module
from monarch_nb.allocator.api.access import Access, Revoked
from monarch_nb.allocator.memory.records import Records
from monarch_nb.allocator.node import Node
from monarch_nb.allocator.processes.supervisor import RankProcess
from monarch_nb.allocator.runs.sessions import Session
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.config import NodePaths
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2, state_pb2
from monarch_nb.proto import worker_pb2 as wire

MESH = "m" * 32


class FakeLink:
    def __init__(self) -> None:
        self.runs: list[bytes] = []
        self.forgotten: list[str] = []
        self.told: list[wire.ControlRequest] = []

    def tell(self, request: wire.ControlRequest) -> None:
        self.told.append(request)

    def start(self, encoded: bytes) -> None:
        self.runs.append(encoded)

    def forget_results(self, run_ids: list[str]) -> None:
        self.forgotten += run_ids


class FakeSupervisor:
    """Ranks without processes. `warm` and `forked` can be cleared to hold calls up."""

    def __init__(self) -> None:
        self.ranks: dict[tuple[str, int], Any] = {}
        self.leaving: list[Any] = []
        self.stores: set[str] = set()
        self.ended: list[int] = []
        self.asked = asyncio.Event()
        self.warm, self.may_fork, self.may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for event in (self.warm, self.may_fork, self.may_end):
            event.set()

    @property
    def templates(self) -> FakeSupervisor:
        return self

    ready, error = asyncio.Event(), ""

    def keep_warm(self, *_: object) -> None:
        pass

    async def template(self, *_: object) -> None:
        self.asked.set()
        await self.warm.wait()

    async def needs_own(self, *_: object) -> Any:
        return [], {}, []

    async def fork_store(self, mesh_id: str, *_: object) -> tuple[int, int]:
        self.asked.set()
        await self.may_fork.wait()
        self.stores.add(mesh_id)
        return 1, 29500

    async def end_store(self, mesh_id: str) -> None:
        self.stores.discard(mesh_id)

    async def fork_ranks(self, _: object, planned: list[tuple[state_pb2.RankRecord, object]]) -> list[Any]:
        self.asked.set()
        await self.may_fork.wait()
        forked = [
            RankProcess(r.mesh_id, r.rank, r, FakeLink(), None, 0)  # type: ignore[arg-type]
            for r, _ in planned
        ]
        self.ranks |= {(rank.mesh_id, rank.rank): rank for rank in forked}
        return forked

    def retire(self, ranks: list[Any]) -> None:
        for rank in ranks:
            if self.ranks.get((rank.mesh_id, rank.rank)) is rank:
                del self.ranks[rank.mesh_id, rank.rank]
        self.leaving += [rank for rank in ranks if rank not in self.leaving]

    async def end(self, ranks: list[Any], **_: object) -> None:
        self.retire(ranks)
        self.asked.set()
        await self.may_end.wait()
        self.leaving = [rank for rank in self.leaving if rank not in ranks]
        self.ended += [rank.rank for rank in ranks]

    def kill(self, _: object) -> None:
        pass

    async def close(self, **_: object) -> None:
        pass


class NodeWithoutProcesses(Node):
    supervisor: Any


def make_node(directory: Path) -> NodeWithoutProcesses:
    """Return a node as an allocator has it that was just started, but for its processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_module, "Supervisor", lambda *_: FakeSupervisor())
        return NodeWithoutProcesses(NodePaths(directory), "node0", procs=4, gpus=[], python="python", preload=[])


def access_of(node: Node, node_id: str, address: str, revoked: Revoked | None = None) -> Access:
    """Return who may do what on a node, which has this name and address."""
    node.identity = dataclasses.replace(node.identity, node_id=node_id, address=address)
    return Access(node, revoked)


def reserve(node: Node, reservation_id: str = "r") -> None:
    node.leases.reserve(pb.ReserveRequest(reservation_id=reservation_id, name=reservation_id, owner="me", procs=2))


def tell(node: NodeWithoutProcesses, result: run_pb2.RankResult) -> None:
    """A rank says what a run has come to."""
    node.on_result(node.supervisor.ranks[MESH, result.rank], result)


def store_request() -> pb.HostStoreRequest:
    return pb.HostStoreRequest(reservation_id="r", mesh_id=MESH)


def spawn_request() -> pb.SpawnRequest:
    return pb.SpawnRequest(reservation_id="r", mesh_id=MESH, name="main", ranks=2, world_size=2)


async def spawn(node: Node) -> None:
    reserve(node)
    await node.stores.host(store_request())
    await node.forking.spawn(spawn_request())
    node.leases.confirm(pb.ConfirmRequest(reservation_id="r"))


def submit(node: Node, run_id: str, session: Session | None = None, number: int = 0) -> Session:
    session = session or Session()
    node.sessions.add(session)
    session.run_ids.add(run_id)
    run = run_pb2.RunSpec(run_id=run_id, number=number)
    node.runs.submit(session, pb.Submit(mesh_id=MESH, run=run, ranks=[0, 1], all_ranks=[0, 1], give_number=not number))
    return session


def events(session: Session, kind: str) -> list[Any]:
    return [getattr(event, kind) for event in session._events if event.HasField(kind)]  # type: ignore[arg-type]


def state_after_restart(node: Node) -> NodeState:
    """Return what an allocator that is started again knows."""
    again: Any = SimpleNamespace(paths=node.paths, state=NodeState(4), supervisor=FakeSupervisor())
    records = Records(again)
    records.read()
    records.close()
    return again.state  # type: ignore[no-any-return]


def assert_nothing_left(node: NodeWithoutProcesses) -> None:
    assert (node.state.leases, node.state.meshes, node.records.meshes) == ({}, {}, {})
    assert (node.supervisor.ranks, node.supervisor.stores) == ({}, set())
    assert not node.paths.mesh(MESH).exists()
    node.records.flush()
    assert not node.records.database._written


def fails_on_disk(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")
