"""The lines of a mesh's log from several nodes: put together, asked for until all is there, and nodes that are away."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from monarch_nb.client.logs import lines
from monarch_nb.client.logs.lines import LogChange, LogLine, LogLines, LogPart, LogRun, LogWindow
from monarch_nb.errors import MeshNotFound, MonarchNbError, NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb

AWAY = NodeUnreachable("node1 does not answer", "node1")


class Node:
    """A node and the connection to it. It says what the test puts into `changes`: an error, or None at the end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[Any] = []
        self.changes: asyncio.Queue[pb.LogChange | MonarchNbError | None] = asyncio.Queue()
        self.lines: dict[int, list[str]] = {}
        self.lines_per_reply = 1000

    def says(self, *parts: tuple[int, int, int], complete: bool = True, runs: Any = ()) -> None:
        """Parts are (run, rank, lines of stdout)."""
        told = [pb.LogPart(number=run, rank=rank, stdout_lines=lines, size_bytes=lines) for run, rank, lines in parts]
        self.changes.put_nowait(pb.LogChange(parts=told, complete=complete, runs=runs))

    async def stream(self, method: str, request: pb.WatchLogRequest) -> AsyncGenerator[pb.LogChange, None]:
        assert method == "WatchLog"
        self.asked.append(request)
        while (change := await self.changes.get()) is not None:
            if isinstance(change, MonarchNbError):
                raise change
            yield change

    async def unary(self, method: str, request: Any, timeout_s: float = 0.0) -> Any:
        self.asked.append(request)
        if method == "SearchLog":
            hits = [array("Q", [window.rank, window.first]) for window in request.windows]
            return pb.SearchLogReply(windows=[each.tobytes() for each in hits])
        assert method == "ReadLines"
        if not self.lines:
            raise AWAY
        reply = pb.ReadLinesReply()
        room = self.lines_per_reply
        for window in request.windows:
            of_rank = self.lines.get(window.rank, [])[window.first : window.first + window.count]
            some, room = of_rank[:room], max(0, room - len(of_rank))
            told = reply.windows.add(cut=len(some) < len(of_rank))
            if request.digests:
                told.digests = array("Q", [len(line) for line in some]).tobytes()
            else:
                told.lines.extend(pb.LogLine(text=line.encode(), size_bytes=len(line)) for line in some)
        return reply


@pytest.fixture
async def nodes(monkeypatch: pytest.MonkeyPatch) -> list[Node]:
    monkeypatch.setattr(lines, "RETRY_S", 0.0)
    return [Node("node0"), Node("node1")]


def of(nodes: list[Any]) -> LogLines:
    return LogLines("m", dict(enumerate(nodes)), ranks_per_node=2)


class TestWatch:
    async def test_what_all_nodes_say(self, nodes: list[Node]) -> None:
        async with asyncio.timeout(10), aclosing(of(nodes).watch(run=3)) as changes:
            nodes[0].says((1, 0, 5))
            assert await anext(changes) == LogChange(parts=(LogPart(1, 0, 5, 0, 5),))
            nodes[1].says((1, 2, 7))
            assert await anext(changes) == LogChange(parts=(LogPart(1, 2, 7, 0, 7),), complete=True)
            nodes[1].says((1, 2, 8))
            assert await anext(changes) == LogChange(parts=(LogPart(1, 2, 8, 0, 8),), complete=True)
        assert nodes[0].asked == [pb.WatchLogRequest(mesh_id="m", number=3, follow=True)]

    async def test_of_some_ranks(self, nodes: list[Node]) -> None:
        async with asyncio.timeout(10), aclosing(of(nodes).watch([2], follow=False)) as changes:
            nodes[1].says((1, 2, 7))
            nodes[1].changes.put_nowait(None)
            assert [change.complete async for change in changes] == [True]
        assert nodes[0].asked == []
        assert nodes[1].asked == [pb.WatchLogRequest(mesh_id="m", ranks=[2])]

    async def test_a_run_has_finished_when_it_has_on_every_node(self, nodes: list[Node]) -> None:
        def run(title: str, finished: bool) -> pb.LogRun:
            return pb.LogRun(number=1, title=title, cell_number=7 if title else 0, finished=finished)

        async with asyncio.timeout(10), aclosing(of(nodes).watch()) as changes:
            nodes[0].says(runs=[run("", finished=True)])
            assert (await anext(changes)).runs == (LogRun(1, "", 0, True),)
            nodes[1].says(runs=[run("train()", finished=False)])
            assert (await anext(changes)).runs == (LogRun(1, "train()", 7, False),)
            nodes[1].says(runs=[run("train()", finished=True)])
            assert (await anext(changes)).runs == (LogRun(1, "train()", 7, True),)

    async def test_a_node_that_is_away_is_named_and_asked_again(self, nodes: list[Node]) -> None:
        async with asyncio.timeout(10), aclosing(of(nodes).watch()) as changes:
            nodes[1].says((1, 2, 7))
            await anext(changes)
            nodes[1].changes.put_nowait(AWAY)
            assert await anext(changes) == LogChange(silent=("node1",))
            nodes[0].says((1, 0, 5))
            assert (await anext(changes)).complete, "as far as nodes answer"
            nodes[1].says((1, 2, 3), complete=False)  # a new allocator counts anew
            nodes[1].says((1, 2, 9))
            assert await anext(changes) == LogChange(complete=True)
            assert await anext(changes) == LogChange(parts=(LogPart(1, 2, 9, 0, 9),), complete=True)
        assert len(nodes[1].asked) == 2

    async def test_a_mesh_that_is_gone(self, nodes: list[Node]) -> None:
        nodes[0].changes.put_nowait(MeshNotFound("released"))
        with pytest.raises(MeshNotFound):
            async with asyncio.timeout(10):
                await anext(of(nodes).watch())


class TestRead:
    async def test_each_window_from_its_node_until_all_is_there(self, nodes: list[Node]) -> None:
        nodes[0].lines = {0: ["a", "bb"], 1: ["c"]}
        nodes[1].lines = {3: ["d"] * 9}
        nodes[0].lines_per_reply = nodes[1].lines_per_reply = 2
        windows = [LogWindow(1, 3, 2, 5), LogWindow(1, 0, 0, 9), LogWindow(1, 1, 0, 1), LogWindow(1, 1, 5, 1)]
        read = await of(nodes).read(windows, max_line_bytes=10)
        assert [[line.text for line in lines] for lines in read] == [["d"] * 5, ["a", "bb"], ["c"], []]
        assert read[1][1] == LogLine("stdout", "bb", 2)
        assert [len(node.asked) for node in nodes] == [2, 3]
        digests = await of(nodes).digests(windows)
        assert [list(each) for each in digests] == [[1] * 5, [1, 2], [1], []]

    async def test_a_node_that_is_away(self, nodes: list[Node]) -> None:
        nodes[0].lines = {0: ["a"]}
        with pytest.raises(NodeUnreachable):
            await of(nodes).read([LogWindow(1, 0, 0, 1), LogWindow(1, 2, 0, 1)])
        with pytest.raises(NodeUnreachable, match="rank 9"):
            await of(nodes).read([LogWindow(1, 9, 0, 1)])


async def test_search_asks_each_node_about_its_ranks(nodes: list[Node]) -> None:
    windows = [LogWindow(1, 2, 5, 9), LogWindow(1, 0, 6, 9), LogWindow(1, 3, 7, 9)]
    found = await of(nodes).search("text", windows, "stderr", regex=True)
    assert [list(each) for each in found] == [[2, 5], [0, 6], [3, 7]]
    assert [[window.rank for window in node.asked[0].windows] for node in nodes] == [[0], [2, 3]]
    assert nodes[0].asked[0].regex
    assert nodes[0].asked[0].stream == pb.LOG_STREAM_STDERR
