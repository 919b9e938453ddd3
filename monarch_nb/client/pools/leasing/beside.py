"""Meshes beside the main one of a reservation: more rank processes on its nodes, which share its slots."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Mapping, Sequence

from monarch_nb.client.connections.connection import SPAWN_TIMEOUT_S, Connection
from monarch_nb.client.pools.leasing.undertaking import ending, leave_end, making
from monarch_nb.config import MAIN_MESH
from monarch_nb.errors import MonarchNbError, NodeUnreachable, UsageError
from monarch_nb.proto import allocator_pb2 as pb

Place = tuple[Connection, pb.SpawnRequest]
"""A node, and what the ranks of the main mesh were started with there."""


def checked(name: str, per_host: Mapping[str, int]) -> None:
    """Raise UsageError unless a mesh can have this name and shape."""
    if name == MAIN_MESH:
        raise UsageError(f"{MAIN_MESH!r} is the mesh that the reservation has: choose another name")
    for label, size in per_host.items():
        if type(size) is not int or size < 1:
            raise UsageError(f"the size of {label!r} must be a whole number of at least 1, not {size!r}")


async def spawn_beside(
    places: Sequence[Place], name: str, per_host: Mapping[str, int], environment: Mapping[str, str]
) -> str:
    """Fork the ranks of one more mesh; return its id. When that fails somewhere, it is nowhere.

    Args:
        places: its nodes.
        per_host: its shape on each.
        environment: added to what the ranks of the main mesh have.

    Raises:
        SpawnError: ranks could not be started.
        NodeUnreachable: a node does not answer.
    """
    mesh_id = uuid.uuid4().hex
    ranks = math.prod(per_host.values())
    first, main = places[0]
    store_request = pb.HostStoreRequest(
        reservation_id=main.reservation_id, mesh_id=mesh_id, python=main.python, preload=main.preload
    )
    nodes = [connection for connection, _ in places]
    try:
        async with making(nodes, main.reservation_id, mesh_id=mesh_id):
            store: pb.HostStoreReply = await first.unary("HostStore", store_request, SPAWN_TIMEOUT_S)
            hosts = [("hosts", len(places))] if "hosts" not in per_host else []
            calls = []
            for number, (connection, like) in enumerate(places):
                spec = pb.SpawnRequest()
                spec.CopyFrom(like)
                spec.mesh_id, spec.name = mesh_id, name
                spec.first_rank, spec.ranks, spec.world_size = number * ranks, ranks, len(places) * ranks
                spec.node_rank, spec.master_host, spec.master_port = number, store.host, store.port
                spec.environment.update(environment)
                del spec.extent[:]
                spec.extent.extend(pb.Axis(name=label, size=size) for label, size in [*hosts, *per_host.items()])
                calls.append(asyncio.ensure_future(connection.unary("Spawn", spec, SPAWN_TIMEOUT_S)))
            await asyncio.wait(calls)
            for call in calls:
                call.result()
    except BaseException:
        await asyncio.shield(stop_beside(nodes, main.reservation_id, mesh_id))
        raise
    return mesh_id


async def stop_beside(nodes: Sequence[Connection], reservation_id: str, mesh_id: str) -> list[Connection]:
    """End a mesh; fine when it has ended. Return the nodes that do not answer: others have them end it when they do."""
    request = pb.StopMeshRequest(mesh_id=mesh_id)
    async with ending(nodes, reservation_id, mesh_id=mesh_id):
        replies = await asyncio.gather(*(node.unary("StopMesh", request) for node in nodes), return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, MonarchNbError):
                raise reply
    silent = [node for node, reply in zip(nodes, replies, strict=True) if isinstance(reply, NodeUnreachable)]
    if silent:
        await leave_end([node for node in nodes if node not in silent], silent, reservation_id, mesh_id)
    return silent
