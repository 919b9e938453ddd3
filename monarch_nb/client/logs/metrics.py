"""Numbers that ranks print beside names, from all nodes: thinned for curves, or all of them. Everything here runs on
the background loop."""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from monarch_nb.client.connections.connection import Connection
from monarch_nb.config import cadence, patience
from monarch_nb.errors import NodeUnreachable
from monarch_nb.lines.pictures import Picture, Point, Told, factor, pictures
from monarch_nb.lines.thinning import Band, Bucket
from monarch_nb.proto import allocator_pb2 as pb

TIMEOUT_S = patience(70.0)
"""How long a node may take besides the time that it was given to read."""
MAX_COLUMNS = 256

Columns = dict[str, list[float | int | None]]


@dataclass
class MetricInfo:
    """A name that lines have, and what is known of it so far.

    Attributes:
        unit: of its numbers; where lines have several, the most frequent one.
        count: how many lines had it.
        last: the last number of the lowest rank.
    """

    name: str
    unit: str
    count: int
    last: float
    ranks: tuple[int, ...]


@dataclass
class Found:
    """Which names there are.

    Attributes:
        is_all: everything that there is has been read.
        unlisted_lines: so many lines are of kinds that are too many to be remembered.
    """

    metrics: list[MetricInfo]
    is_all: bool
    unlisted_lines: int
    finished: bool


@dataclass
class _Node:
    """What one node has told."""

    connection: Connection
    mesh_id: str
    ranks: list[int]
    reading: str = ""
    version: int = 0
    curves: dict[tuple[str, str, str], Told] = field(default_factory=dict)
    reply: pb.ReadMetricsReply = field(default_factory=pb.ReadMetricsReply)
    is_silent: bool = False


class RunMetrics:
    """The numbers of one run.

    Args:
        parts: of the mesh: each is on a node that answers, has an id and some of the ranks.
        ranks: whose lines are read, ascending; the first one's line is drawn.
    """

    def __init__(
        self, parts: Iterable[tuple[Connection, str, Sequence[int]]], number: int, ranks: Sequence[int]
    ) -> None:
        self.number, self.ranks = number, tuple(ranks)
        self._nodes = [_Node(connection, mesh_id, list(on_node)) for connection, mesh_id, on_node in parts]

    @classmethod
    def of_mesh(
        cls,
        mesh_id: str,
        connections: Mapping[int, Connection],
        ranks_per_node: int,
        number: int,
        ranks: Sequence[int],
    ) -> RunMetrics:
        """Return those of a run of a mesh.

        Args:
            connections: to the mesh's nodes that answer, by node rank.
        """
        by_node: dict[int, list[int]] = {}
        for rank in ranks:
            by_node.setdefault(rank // ranks_per_node, []).append(rank)
        there = ((connections[node], mesh_id, of_it) for node, of_it in by_node.items() if node in connections)
        return cls(there, number, ranks)

    async def names(self, budget_s: float = cadence(2.0)) -> Found:
        """Return which names there are, the most frequent first."""
        replies = [reply for _, reply in await self._ask((), "", budget_s)]
        found: dict[str, list[tuple[pb.MetricName, float]]] = {}
        for reply in replies:
            for told in reply.names:
                found.setdefault(told.name, []).append((told, told.last))
        metrics = [_info(name, [told for told, _ in each]) for name, each in found.items()]
        metrics.sort(key=lambda metric: -metric.count)
        return Found(
            metrics,
            all(reply.read_bytes >= reply.size_bytes for reply in replies),
            sum(reply.unlisted_lines for reply in replies),
            all(reply.finished for reply in replies),
        )

    async def read(self, names: Sequence[str], x: str, budget_s: float) -> bool:
        """Read on for some time; return whether everything is read that will be written.

        Raises:
            NodeUnreachable: no node answers.
        """
        for node, reply in await self._ask(names, x, budget_s):
            node.reply = reply
            _take(node)
        return all(node.reply.finished for node in self._nodes)

    def pictures(self, names: Sequence[str]) -> list[Picture]:
        """Return what there is to draw of what was read."""
        return pictures([told for node in self._nodes for told in node.curves.values()], names)

    @property
    def share_read(self) -> float:
        """How much of what there is has been read, from 0 to 1."""
        size_bytes = sum(node.reply.size_bytes for node in self._nodes)
        return self.read_bytes / size_bytes if size_bytes else 1.0

    @property
    def read_bytes(self) -> int:
        """How much has been read."""
        return sum(node.reply.read_bytes for node in self._nodes)

    @property
    def ranks_read(self) -> int:
        """How many ranks are read to their ends."""
        return sum(node.reply.ranks_read for node in self._nodes)

    @property
    def unlisted_lines(self) -> int:
        """See `Found`."""
        return sum(node.reply.unlisted_lines for node in self._nodes)

    @property
    def silent(self) -> list[str]:
        """The names of the nodes that did not answer last."""
        return sorted(node.connection.name for node in self._nodes if node.is_silent)

    async def _ask(self, names: Sequence[str], x: str, budget_s: float) -> list[tuple[_Node, pb.ReadMetricsReply]]:
        asked = (self._ask_node(node, names, x, budget_s) for node in self._nodes)
        replies = zip(self._nodes, await asyncio.gather(*asked), strict=True)
        answered = [(node, reply) for node, reply in replies if reply is not None]
        if not answered:
            raise NodeUnreachable(f"no node that ran run {self.number} answers")
        return answered

    async def _ask_node(self, node: _Node, names: Sequence[str], x: str, budget_s: float) -> pb.ReadMetricsReply | None:
        request = pb.ReadMetricsRequest(
            mesh_id=node.mesh_id, number=self.number, ranks=node.ranks, names=names, x=x, budget_s=budget_s
        )
        if names:
            request.reading, request.since = node.reading, node.version
        try:
            reply: pb.ReadMetricsReply = await node.connection.unary("ReadMetrics", request, budget_s + TIMEOUT_S)
        except NodeUnreachable:
            node.is_silent = True
            return None
        node.is_silent = False
        return reply

    async def columns(self, names: Sequence[str] | None) -> Columns:
        """Return all numbers, a row for each line that has any: rank, step, and a column for each name."""
        if names is None:
            names = [metric.name for metric in (await self._all_names()).metrics][:MAX_COLUMNS]
        tables = await asyncio.gather(*(self._rows_of(node, names) for node in self._nodes))
        return _columns([rows for table in tables for rows in table], names)

    async def _all_names(self) -> Found:
        found = await self.names()
        while not found.is_all:
            found = await self.names()
        return found

    async def _rows_of(self, node: _Node, names: Sequence[str]) -> list[_Rows]:
        found = []
        for rank in node.ranks:
            request = pb.ReadMetricsRequest(
                mesh_id=node.mesh_id, number=self.number, ranks=[rank], names=names, rows=True
            )
            while True:
                reply: pb.ReadMetricsReply = await node.connection.unary("ReadMetrics", request, TIMEOUT_S)
                found.append(_Rows(rank, list(reply.rows)))
                request.place.CopyFrom(reply.place)
                if reply.finished:
                    break
        return found


@dataclass
class _Rows:
    """Numbers of some lines of a rank."""

    rank: int
    parts: list[pb.MetricRows]

    def rows(self) -> Iterator[tuple[float | None, dict[tuple[str, str], float]]]:
        """Yield step and numbers by name and unit, in the order of the lines."""
        found = []
        for part in self.parts:
            keys = list(zip(part.names, part.units, strict=True))
            has_x = part.x != "line"
            size = 1 + has_x + len(keys)
            numbers = _unpacked(part.numbers)
            for start in range(0, len(numbers), size):
                row = numbers[start : start + size]
                step = row[1] if has_x and part.x == "step" else None
                found.append((row[0], step, dict(zip(keys, row[1 + has_x :], strict=True))))
        found.sort(key=lambda each: each[0])
        return ((step, values) for _, step, values in found)


def _columns(tables: Iterable[_Rows], names: Sequence[str]) -> Columns:
    columns: Columns = {"rank": [], "step": []}
    chosen: dict[tuple[str, str], tuple[str, float]] = {}
    units: dict[str, str] = {}
    count = 0
    for table in tables:
        for step, values in table.rows():
            columns["rank"].append(table.rank)
            columns["step"].append(int(step) if step is not None and step.is_integer() else step)
            for key, value in values.items():
                if key not in chosen:
                    chosen[key] = _column(*key, units)
                name, by = chosen[key]
                if name == "step":
                    continue
                column = columns.setdefault(name, [])
                column.extend([None] * (count - len(column)))
                column.append(value if by == 1.0 else value * by)
            count += 1
    for column in columns.values():
        column.extend([None] * (count - len(column)))
    order = {name: place for place, name in enumerate(("rank", "step", *names))}
    return dict(sorted(columns.items(), key=lambda each: order.get(each[0], len(order))))


def _column(name: str, unit: str, units: dict[str, str]) -> tuple[str, float]:
    """Return the column of a name's numbers with a unit, and by what they are multiplied: the first unit counts."""
    first = units.setdefault(name, unit)
    by = factor(unit, first)
    return (name, by) if by is not None else (f"{name} ({unit or 'no unit'})", 1.0)


def _info(name: str, told: Sequence[pb.MetricName]) -> MetricInfo:
    most = max(told, key=lambda each: each.count)
    first = min(told, key=lambda each: min(each.ranks, default=0))
    ranks = tuple(sorted({rank for each in told for rank in each.ranks}))
    return MetricInfo(name, most.unit, sum(each.count for each in told), first.last, ranks)


def _take(node: _Node) -> None:
    """Take in what a node says: what has changed since it was asked before, or everything anew."""
    reply = node.reply
    if node.reading != reply.reading:
        node.curves.clear()
    node.reading, node.version = reply.reading, reply.version
    for said in reply.curves:
        key = said.name, said.unit, said.x
        told = node.curves.setdefault(key, Told(*key))
        if said.whole:
            told.line.clear()
            told.band.clear()
        told.width, told.count = said.width, said.count
        told.last, told.odd, told.odd_ranks = _points(said.last), _points(said.odd), said.odd_ranks
        for row in _rows_of(said.line, 8):
            key_, x_low, low, x_high, high, x_last, last, marks = row
            told.line[key_] = Bucket(x_low, low, x_high, high, x_last, last, int(low == low), int(marks))
        for key_, low, high, differs, marks in _rows_of(said.band, 5):
            told.band[key_] = Band(low, high, bool(differs), int(marks))


def _points(told: Iterable[pb.MetricPoint]) -> list[Point]:
    return [Point(each.rank, each.x, each.value, each.count) for each in told]


def _rows_of(packed: bytes, size: int) -> Iterator[array[float]]:
    numbers = _unpacked(packed)
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


def _unpacked(packed: bytes) -> array[float]:
    numbers = array("d", packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
