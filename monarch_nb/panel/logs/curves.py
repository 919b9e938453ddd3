"""Curves of the numbers in a log, read on whenever a browser asks: while nobody looks, nothing is read."""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from monarch_nb.client.curves.plot import Drawing, curves_json
from monarch_nb.client.curves.searching import search
from monarch_nb.client.curves.words import is_step, suggested
from monarch_nb.client.logs.metrics import RunMetrics
from monarch_nb.client.pools.held import HeldReservation, MeshParts
from monarch_nb.client.pools.infos import RunInfo, run_infos
from monarch_nb.config import cadence, patience
from monarch_nb.errors import MonarchNbError, NodeUnreachable, RunNotFound
from monarch_nb.ground.code_names import run_name
from monarch_nb.panel.shown.view import Json
from monarch_nb.proto import allocator_pb2 as pb

MAX_KEPT = 16
MAX_TOLD_RUNS, MAX_TOLD_NAMES = 50, 100


@dataclass(frozen=True)
class CurvesRequest:
    """Which curves to show.

    Attributes:
        runs: their numbers, over each other. x: against what; empty for the step of a line.
    """

    mesh: str
    runs: tuple[int, ...]
    names: tuple[str, ...]
    x: str
    ranks: tuple[int, ...]


@dataclass
class _Kept:
    """Curves that were asked for. The id tells a browser whether what it has is of these."""

    drawing: Drawing
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    begun: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_begun: bool = False

    @property
    def version(self) -> str:
        return f"{self.id}-{self.drawing.version}"


class MeshNumbers:
    """What reads the numbers that were printed on a mesh.

    Args:
        held: the reservation, as its nodes told of it.
        reader: who is told: runs of others say whose they are.
    """

    def __init__(self, held: HeldReservation, mesh_id: str, reader: str) -> None:
        self._mesh_id, self._reader = mesh_id, reader
        parts: MeshParts = held.meshes[mesh_id]
        self._connections, self._per_node = parts.connections(held), parts.spec.ranks

    def of(self, number: int, ranks: Sequence[int]) -> RunMetrics:
        """Return what reads the numbers of a run."""
        return RunMetrics.of_mesh(self._mesh_id, self._connections, self._per_node, number, ranks)

    async def runs(self) -> list[RunInfo]:
        """Return the runs that the nodes remember which answer, oldest first.

        Raises:
            NodeUnreachable: none answers.
        """
        request = pb.StatusRequest(past_runs=pb.PastRuns(mesh_id=self._mesh_id))
        nodes = list(self._connections.values())
        asked = (node.unary("Status", request, patience(5.0)) for node in nodes)
        replies = await asyncio.gather(*asked, return_exceptions=True)
        if errors := [reply for reply in replies if isinstance(reply, BaseException)]:
            unexpected = [error for error in errors if not isinstance(error, NodeUnreachable)]
            if unexpected or len(errors) == len(replies):
                raise (unexpected or errors)[0]
        told = [
            (node.name, mesh)
            for node, reply in zip(nodes, replies, strict=True)
            if not isinstance(reply, BaseException)
            for reservation in reply.reservations
            for mesh in reservation.meshes
            if mesh.mesh_id == self._mesh_id
        ]
        return run_infos(told, self._reader)


class Curves:
    """The curves that browsers have asked for: what is asked again goes on from where it was."""

    def __init__(self) -> None:
        self._kept: OrderedDict[CurvesRequest, _Kept] = OrderedDict()

    async def found(self, numbers: MeshNumbers, run: int | None, ranks: Sequence[int]) -> Json:
        """Return which runs there are, and which numbers one of them has: by default the newest that has any.

        Raises:
            RunNotFound: nothing has run yet.
        """
        infos = (await numbers.runs())[::-1]
        if run is None and not infos:
            raise RunNotFound("nothing has run here yet: there are no numbers to draw")
        newest = (numbers.of(info.number, ranks) for info in infos)
        reader = numbers.of(run, ranks) if run is not None else (await search(newest)).newest()
        found = await reader.names(cadence(0.5))
        names = [
            {"name": each.name, "unit": each.unit, "lines": each.count, "is_step": is_step(each.name)}
            for each in found.metrics[:MAX_TOLD_NAMES]
        ]
        return {
            "run": reader.number,
            "runs": [_told(info) for info in infos[:MAX_TOLD_RUNS]],
            "names": names,
            "suggested": suggested(found.metrics),
            "is_all": found.finished and found.is_all,
        }

    async def read(self, numbers: MeshNumbers, request: CurvesRequest, since: str) -> Json:
        """Read on for less than a second and return the curves, unless a browser has them as they are.

        Args:
            since: the version that the browser has.

        Returns:
            "version", "again_s" (how soon to ask again; None when everything is read that will be written), and
            "curves" when they are others.

        Raises:
            UsageError: no line has a name, and none will.
        """
        kept = self._kept.get(request) or self._keep(request, await _drawing(numbers, request))
        try:
            async with kept.begun:
                if not kept.is_begun:
                    await kept.drawing.begin()
                    kept.is_begun = True
                elif not kept.drawing.is_over:
                    await kept.drawing.advance()
        except MonarchNbError:
            self._kept.pop(request, None)
            raise
        drawing = kept.drawing
        told: Json = {"version": kept.version, "again_s": None if drawing.is_over else drawing.rest_s}
        return told if since == kept.version else told | {"curves": curves_json(drawing.drawn())}

    def _keep(self, request: CurvesRequest, drawing: Drawing) -> _Kept:
        kept = self._kept.setdefault(request, _Kept(drawing))  # somebody else may have asked meanwhile
        self._kept.move_to_end(request)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return kept


async def _drawing(numbers: MeshNumbers, request: CurvesRequest) -> Drawing:
    names = {info.number: _name(info) for info in await numbers.runs()}
    titles = {number: names.get(number) or run_name(number) for number in request.runs}
    return Drawing([numbers.of(each, request.ranks) for each in request.runs], titles, request.names, request.x)


def _name(info: RunInfo) -> str:
    return run_name(info.number, info.cell_number, owner=info.owner)


def _told(info: RunInfo) -> Json:
    return {"number": info.number, "name": _name(info), "title": info.title, "is_over": info.done}
