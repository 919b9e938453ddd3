"""What this process does on several nodes, looked after by one of them: should the process be killed half-way, nothing
of it stays anywhere."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Sequence

from monarch_nb.client.connections.connection import Connection
from monarch_nb.config import patience
from monarch_nb.errors import MonarchNbError, NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto.files_pb2 import Peer

KEEPERS = 2
"""So many nodes are asked to look after it, one after the other: the first may be lost."""
KEEPER_TIMEOUT_S = patience(5.0)


@contextlib.asynccontextmanager
async def making(
    nodes: Sequence[Connection], reservation_id: str, *, mesh_id: str = "", owner: str = ""
) -> AsyncIterator[None]:
    """Make a mesh or a reservation in the block. When this process is gone before it is whole, it is ended everywhere;
    when the block fails, who made it is to be `ending` it.

    Args:
        mesh_id: a mesh of the reservation; empty: the reservation itself.
        owner: whose that is, when the nodes may not know it.

    Raises:
        NodeUnreachable: the node that looks after it can not be told that it is whole, and so will end it.
    """
    request = _request(nodes, reservation_id, mesh_id, owner)
    async with _kept(nodes, request) as keeper:
        yield
        await _done(keeper, request)


@contextlib.asynccontextmanager
async def ending(
    nodes: Sequence[Connection], reservation_id: str, *, mesh_id: str = "", owner: str = ""
) -> AsyncIterator[None]:
    """End a mesh or a reservation in the block, also when this process is gone half-way. Arguments as of `making`."""
    request = _request(nodes, reservation_id, mesh_id, owner)
    async with _kept(nodes, request) as keeper:
        yield
        with contextlib.suppress(MonarchNbError):  # then it is ended once more, when we are gone
            await _done(keeper, request)


async def leave_end(
    keepers: Sequence[Connection], nodes: Sequence[Connection], reservation_id: str, mesh_id: str
) -> None:
    """Have one of some nodes end a mesh on others, as soon as these answer: as if who was to do it were gone."""
    request = _request(nodes, reservation_id, mesh_id, "")
    request.client_id = f"gone-{uuid.uuid4().hex}"
    for keeper in keepers[:KEEPERS]:
        with contextlib.suppress(MonarchNbError):
            await keeper.unary("Undertake", request, KEEPER_TIMEOUT_S)
            return


async def using(nodes: Sequence[Connection], reservation_id: str, mesh_id: str, linger_s: float) -> None:
    """Use a mesh, as long as this process is there: it is ended everywhere when all who have said so are gone for a
    while.

    Raises:
        NodeUnreachable: no node that could look after it answers.
    """
    request = _request(nodes, reservation_id, mesh_id, "")
    request.linger_s = linger_s
    for number, node in enumerate(keepers := nodes[:KEEPERS], start=1):
        node.hold_session()  # for good: its end says that we are gone
        request.client_id = node.client_id
        try:
            await node.unary("Undertake", request, KEEPER_TIMEOUT_S)
            return
        except NodeUnreachable:
            node.let_go()
            if number == len(keepers):
                raise


def several(nodes: Sequence[Connection]) -> Sequence[Connection]:
    """Return nodes if there are several: one does what is asked of it whole, and needs nobody who looks after that."""
    return nodes if len(nodes) > 1 else ()


def _request(nodes: Sequence[Connection], reservation_id: str, mesh_id: str, owner: str) -> pb.UndertakeRequest:
    peers = [Peer(node_id=node.name, address=node.node_address) for node in nodes]
    return pb.UndertakeRequest(reservation_id=reservation_id, mesh_id=mesh_id, owner=owner, nodes=peers)


@contextlib.asynccontextmanager
async def _kept(nodes: Sequence[Connection], request: pb.UndertakeRequest) -> AsyncIterator[Connection | None]:
    """Have a node look after it; None when none does, and then what is to be done on them says why."""
    asked: list[Connection] = []
    try:
        keeper = None
        for node in sorted(nodes, key=lambda node: not node.up)[:KEEPERS]:
            node.hold_session()  # whose end tells it that we are gone
            asked.append(node)
            request.client_id = node.client_id
            with contextlib.suppress(MonarchNbError):
                await node.unary("Undertake", request, KEEPER_TIMEOUT_S)
                keeper = node
                break
        yield keeper
    finally:
        for node in asked:
            node.let_go()


async def _done(keeper: Connection | None, request: pb.UndertakeRequest) -> None:
    if keeper is not None:
        request.done = True
        await keeper.unary("Undertake", request)
