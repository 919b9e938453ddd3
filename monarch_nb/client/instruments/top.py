"""`Mesh.top`: where the ranks are, and who is waited for."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from monarch_nb.client.connections.asking import answers
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.instruments.top_table import TopTable, rank_top
from monarch_nb.client.pools.infos import RankInfo, infos_of_node
from monarch_nb.config import cadence, patience
from monarch_nb.errors import NodeUnreachable
from monarch_nb.ground.printing import put
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire

if TYPE_CHECKING:
    from monarch_nb.client.meshes.core import MeshCore
    from monarch_nb.client.meshes.mesh import Mesh

EVERY_S = cadence(1.0)
"""So often whoever watches asks: ranks look for a few seconds after each time."""


async def look_at(mesh: MeshCore, ranks: Sequence[int], last_s: float = 0) -> TopTable:
    """Return where ranks are. They begin to look when they are asked first, and end when nobody has asked for a while.

    Args:
        last_s: what they did in so many of the last seconds; 0: in as many as they remember.

    Raises:
        MonarchNbError: the mesh is no longer there.
        NodeUnreachable: no node answers.
    """
    asked = mesh.control(ranks, timeout_s=patience(2.0), looks={"last_s": last_s})
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


def _told_by(reply: wire.ControlReply | None) -> run_pb2.Looks | None:
    """Return what a rank said; None when it did not answer, or is of a version that does not know the question."""
    return reply.looks if reply is not None and reply.HasField("looks") else None


async def _told(mesh: MeshCore) -> dict[Connection, pb.StatusReply]:
    request = pb.StatusRequest(readings=True)
    replies = await answers({node: node.unary("Status", request) for node in mesh.connections.values()})
    if unexpected := [each for each in replies.values() if not isinstance(each, (pb.StatusReply, NodeUnreachable))]:
        raise unexpected[0]
    told = {node: reply for node, reply in replies.items() if isinstance(reply, pb.StatusReply)}
    if not told:
        raise mesh.all_away()
    return told


LOOK_S = cadence(3.0)


def top(mesh: Mesh, look_s: float = LOOK_S) -> TopTable:
    """Look where the ranks are for some seconds, 20 times a second, and say which share of their time they spent in
    torch, in Python, in the data loader and in which collectives; how many steps a second their optimizers take;
    what memory and GPUs they use; and who is waited for. Works while ranks run, whoever started that.

    Args:
        look_s: for how long. 0: not at all; then this tells what was seen if somebody watches already.

    Returns:
        The table. `table.straggler` is who is waited for, or None; `table.ranks` has each rank.

    Raises:
        NodeUnreachable: no node answers.

    Example:
        >>> mesh.top().straggler.ranks  # doctest: +SKIP
        (3,)
    """
    return call(_look(mesh.core, mesh.ranks, look_s))


def follow(core: MeshCore, ranks: tuple[int, ...], every_s: float = EVERY_S) -> Iterator[TopTable]:
    """Yield where ranks are, again and again.

    Raises:
        NodeUnreachable: no node answers any more.
    """
    while True:
        yield call(look_at(core, ranks))
        call(asyncio.sleep(every_s))


async def _look(core: MeshCore, ranks: tuple[int, ...], look_s: float) -> TopTable:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    table = await look_at(core, ranks)
    while not table.is_idle and (left_s := began_s + look_s - loop.time()) > 0:
        await asyncio.sleep(min(EVERY_S, left_s))
        table = await look_at(core, ranks, loop.time() - began_s)
    return table


class TerminalScreen:
    """Shows texts on stdout, each in the place of the last one; in a pipe one below the other."""

    def __init__(self) -> None:
        self._lines = 0

    def show(self, text: str) -> None:
        """Show a text of a few lines."""
        lines, back = text.splitlines(), ""
        if sys.stdout.isatty():
            columns = shutil.get_terminal_size().columns
            lines = [line[:columns] for line in lines]  # a line that is wrapped would be several
            back = f"\x1b[{self._lines}A\x1b[J" if self._lines else ""
        self._lines = len(lines)
        put(back + "".join(f"{line}\n" for line in lines))
