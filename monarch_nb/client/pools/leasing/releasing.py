"""Giving a reservation back on all its nodes, and what is to be known of that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from monarch_nb.client.connections.asking import answers
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.pools.leasing.late_releases import LateReleases
from monarch_nb.client.pools.leasing.undertaking import ending, several
from monarch_nb.errors import MonarchNbError, NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from monarch_nb.sizes import size

MESSENGERS = 2
"""So many nodes remember a release of which another one does not know yet: one of them may be lost as well."""


@dataclass(frozen=True)
class KeptFiles:
    """What ranks wrote into a node's copy of the notebook's files, which was removed; as text a line that says it.

    Attributes:
        directory: where it is now, on the node.
    """

    node: str
    directory: str
    files: int
    size_bytes: int

    def __str__(self) -> str:
        count = f"{self.files:,} file{'' if self.files == 1 else 's'}"
        return f"kept {count}, {size(self.size_bytes)}, that ranks wrote on {self.node}: {self.directory}"


@dataclass
class ReleasedLater:
    """A node that did not answer when its reservation was given back.

    Attributes:
        host: that node. told_by: those that tell it when it does.
        pool: whoever asks this one from here tells it, where no other node does; else the next job of its engine.
    """

    host: str
    told_by: tuple[str, ...] = ()
    pool: str = ""

    def __str__(self) -> str:
        if self.pool:
            then = f"then the next command or panel here that asks the pool {self.pool} ends them"
            return f"{self.host} does not answer: its ranks go on until it does; {then}"
        if not self.told_by:
            return f"{self.host} does not answer: its ranks go on, until the next job that reaches it ends them"
        tell = "tells" if len(self.told_by) == 1 else "tell"
        told_by = " and ".join(self.told_by)
        return f"{self.host} does not answer: its ranks go on until it does; then {told_by} {tell} it to end them"


@dataclass
class Released:
    """What became of a release: why nodes did not answer, and what ranks wrote."""

    failed: list[MonarchNbError] = field(default_factory=list)
    kept: list[KeptFiles] = field(default_factory=list)
    later: list[ReleasedLater] = field(default_factory=list)

    @property
    def leftovers(self) -> list[KeptFiles | ReleasedLater]:
        """What there is to know of it; each can be printed."""
        return [*self.kept, *self.later]


async def release(connections: Iterable[Connection], reservation_id: str, owner: str = "", *, by: str = "") -> Released:
    """Give a reservation back on every node that answers; of these, some tell the others when they are back, or this
    computer does.

    Args:
        owner: whose it is, when that may be somebody else.
        by: where a person has asked for it, or with what ("in the panel"): others that use it are told so.
    """
    nodes = list(connections)
    request = pb.ReleaseRequest(reservation_id=reservation_id, owner=owner, by=by)
    async with ending(several(nodes), reservation_id, owner=owner):
        return await _release(nodes, request)


async def _release(nodes: list[Connection], request: pb.ReleaseRequest) -> Released:
    released = Released()
    replies = await asyncio.gather(*(node.unary("Release", request) for node in nodes), return_exceptions=True)
    for node, reply in zip(nodes, replies, strict=True):
        if isinstance(reply, MonarchNbError):
            released.failed.append(reply)
        elif isinstance(reply, BaseException):
            raise reply
        elif reply.HasField("kept"):
            kept = reply.kept
            released.kept.append(KeptFiles(node.name, kept.directory, kept.files, kept.size_bytes))
    silent = [node for node, reply in zip(nodes, replies, strict=True) if isinstance(reply, NodeUnreachable)]
    there = [node for node, reply in zip(nodes, replies, strict=True) if not isinstance(reply, BaseException)]
    if silent and there:
        await _leave_to(there[:MESSENGERS], silent, released, request)
    if silent and not released.later:
        await _leave_to_us(silent, released, request)
    return released


async def _leave_to(
    messengers: list[Connection], silent: list[Connection], released: Released, request: pb.ReleaseRequest
) -> None:
    """Have some nodes release a reservation on others, when these answer."""
    request.absent.extend(files_pb2.Peer(node_id=each.name, address=each.node_address) for each in silent)
    replies = await answers({each: each.unary("Release", request) for each in messengers})
    if told_by := tuple(each.name for each, reply in replies.items() if not isinstance(reply, BaseException)):
        _is_left(released, [ReleasedLater(each.name, told_by) for each in silent])


async def _leave_to_us(silent: list[Connection], released: Released, request: pb.ReleaseRequest) -> None:
    """Remember to release a reservation on nodes of a network, when these answer."""
    pools = {each.identity.pool for each in silent if each.identity}
    late = LateReleases(pool := pools.pop()) if len(pools) == 1 else None
    if late is not None and await late.add(reservation_id=request.reservation_id, by=request.by):
        _is_left(released, [ReleasedLater(each.name, pool=pool) for each in silent])


def _is_left(released: Released, later: list[ReleasedLater]) -> None:
    released.later = later
    released.failed = [error for error in released.failed if not isinstance(error, NodeUnreachable)]
