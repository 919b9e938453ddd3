"""One look at a mesh: its ranks say where they were, and its nodes what they use."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from monarch_nb.client.connections.asking import answers
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.pools.facts.infos import RankInfo, infos_of_node
from monarch_nb.client.pools.ranks import MeshRanks
from monarch_nb.client.top.ranks import rank_top
from monarch_nb.client.top.table import TopTable
from monarch_nb.config import cadence, patience
from monarch_nb.errors import NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

EVERY_S = cadence(1.0)
"""So often whoever watches asks: ranks look for a few seconds after each time."""


async def look_at(mesh: MeshRanks, ranks: Sequence[int], last_s: float = 0) -> TopTable:
    """Return where ranks are. They begin to look when they are asked first, and end when nobody has asked for a while.

    Args:
        last_s: what they did in so many of the last seconds; 0: in as many as they remember.

    Raises:
        MonarchNbError: the mesh is no longer there.
        NodeUnreachable: no node answers.
    """
    asked = mesh.control(ranks, timeout_s=patience(2.0), looks=True, looks_s=last_s)
    looks, told = await asyncio.gather(asked, _told(mesh))
    infos: dict[int, RankInfo] = {}
    gpus: dict[str, dict[int, pb.GpuReading]] = {}
    for node, reply in told.items():
        gpus[node.name] = {gpu.index: gpu for gpu in reply.readings.gpus}
        for reservation in reply.reservations:
            for status in reservation.meshes:
                if status.mesh_id == mesh.mesh_id:
                    infos |= {info.rank: info for info in infos_of_node(node.name, status)}
    if not infos:
        raise mesh.gone(list(told.values()))
    found = []
    for rank in ranks:
        info = infos.get(rank) or RankInfo(rank, mesh.where_of([rank]).strip(" ()"), 0, "unreachable")
        read = [gpu for index in info.gpu_indices if (gpu := gpus.get(info.host, {}).get(index)) is not None]
        busy = [(gpu.utilisation if gpu.HasField("utilisation") else None, gpu.memory_used_bytes) for gpu in read]
        found.append(rank_top(info, _told_by(looks.get(rank)), busy))
    return TopTable(tuple(found), others=len(infos.keys() - set(ranks)))


def _told_by(reply: pb.RankReply | None) -> run_pb2.Looks | None:
    """Return what a rank said; None when it did not answer, or is of a version that does not know the question."""
    return reply.looks if reply is not None and reply.HasField("looks") else None


async def _told(mesh: MeshRanks) -> dict[Connection, pb.StatusReply]:
    request = pb.StatusRequest(readings=True)
    replies = await answers({node: node.unary("Status", request) for node in mesh.connections.values()})
    if unexpected := [each for each in replies.values() if not isinstance(each, (pb.StatusReply, NodeUnreachable))]:
        raise unexpected[0]
    told = {node: reply for node, reply in replies.items() if isinstance(reply, pb.StatusReply)}
    if not told:
        raise mesh.all_away()
    return told
