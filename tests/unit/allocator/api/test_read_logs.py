"""Reading logs: every line, by run and rank, whole and in order, from files that runs share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.allocator.api import read_logs
from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.logs.stored import Dropped
from monarch_nb.errors import MeshNotFound
from monarch_nb.ground.frames import encode_frame
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from unit.allocator.api.log_node import FakeNode

Line = tuple[int, int, str]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[FakeNode]:
    made = FakeNode(tmp_path)
    yield made
    made.close()
    assert not made.sessions, "who followed is gone"


async def read(node: Any, **request: Any) -> list[Line]:
    return [
        (record.number, record.rank, record.text.decode(errors="backslashreplace"))
        async for batch in node.reader().read(pb.ReadLogsRequest(mesh_id="m", **request))
        for record in batch.records
    ]


async def test_by_run_then_by_rank(node: FakeNode) -> None:
    for number in (1, 2):
        node.add_run(number, [0, 1])
        for rank in (1, 0):
            node.write(number, rank, b"a\nb\n")
    assert await read(node) == [(run, rank, line) for run in (1, 2) for rank in (0, 1) for line in ("a\n", "b\n")]
    assert await read(node, ranks=[1], number=2) == [(2, 1, "a\n"), (2, 1, "b\n")]
    assert await read(node, ranks=[1], number=3) == []


@pytest.mark.parametrize("text", ["\n", "\n\n", "a\n\nb\n", "a", "\na", "a\r\n\rb\x0bc\x85d\n"])
@pytest.mark.parametrize("piece_bytes", [1, 2, 1000])
async def test_lines_are_whole_whatever_they_hold(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, text: str, piece_bytes: int
) -> None:
    monkeypatch.setattr(read_logs, "_PIECE_BYTES", piece_bytes)
    node.write(1, 0, text.encode())
    expected = [line + "\n" for line in text.split("\n")[:-1]] + ([text.split("\n")[-1]] if text[-1] != "\n" else [])
    for lines in (0, 100):
        found = [line for _, _, line in await read(node, last_lines=lines)]
        assert "".join(found) == text
        if piece_bytes == 1000 or lines:
            assert found == expected


async def test_both_streams_in_the_order_of_writing(node: FakeNode) -> None:
    node.write(1, 0, b"one\n")
    node.write(1, 0, encode_frame(run_pb2.Mark(stdout_bytes=4).SerializeToString()), "marks")
    node.write(1, 0, b"two\n", "err")
    node.write(1, 0, encode_frame(run_pb2.Mark(stdout_bytes=4, stderr_bytes=4).SerializeToString()), "marks")
    node.write(1, 0, b"three\n")
    batches = [batch async for batch in node.reader().read(pb.ReadLogsRequest(mesh_id="m"))]
    records = [(record.stderr, record.text) for batch in batches for record in batch.records]
    assert records == [(False, b"one\n"), (True, b"two\n"), (False, b"three\n")]
    assert [line for _, _, line in await read(node, last_lines=2)] == ["two\n", "three\n"]


async def test_the_newest_of_each_rank_across_runs(node: FakeNode) -> None:
    node.write(1, 0, b"old\n")
    node.write(1, 1, b"old\nolder\n")
    node.write(2, 0, b"a\nb\n")
    newest = [(1, 0, "old\n"), (1, 1, "old\n"), (1, 1, "older\n"), (2, 0, "a\n"), (2, 0, "b\n")]
    assert await read(node, last_lines=3) == newest, "run after run"
    assert await read(node, last_lines=1) == [(1, 1, "older\n"), (2, 0, "b\n")]
    lines = [str(number) * 50_000 + "\n" for number in range(6)]
    node.write(3, 0, "".join(lines).encode())
    assert await read(node, last_lines=3, ranks=[0]) == [(3, 0, line) for line in lines[-3:]]


async def test_runs_that_print_nothing_share_the_files_of_the_run_before_them(node: FakeNode) -> None:
    node.add_run(1, [0, 1])
    node.add_run(2, [0], output=1)
    node.add_run(3, [1], output=1)
    node.write(1, 0, b"by 2\n")
    node.write(1, 1, b"by 3\n")
    assert await read(node) == [(2, 0, "by 2\n"), (3, 1, "by 3\n")], "it belongs to the newest run of the rank"
    assert await read(node, number=2) == [(2, 0, "by 2\n")]
    assert await read(node, number=1) == []
    node.add_run(4, [1])
    node.add_run(5, [0], output=1)
    node.write(4, 1, b"by 4\n")
    assert [number for number, _, _ in await read(node)] == [3, 4, 5], "runs come in order all the same"


class TestFollow:
    async def test_what_was_written_and_then_what_comes_in_whichever_run(self, node: FakeNode) -> None:
        node.add_run(1, [0, 1])
        node.write(1, 0, b"older\nold\nnewer\n")
        async with asyncio.timeout(20):
            came = self.follow(node, last_lines=2)
            assert await anext(came) == [(1, 0, "old\n"), (1, 0, "newer\n")]
            node.write(1, 1, b"a\nb")
            assert await anext(came) == [(1, 1, "a\n")]
            assert await anext(came) == [(1, 1, "b")]
            node.write(1, 1, b"c\n")
            assert await anext(came) == [(1, 1, "c\n")]
            node.add_run(2, [0])
            node.write(2, 0, b"of the next run\n")
            assert await anext(came) == [(2, 0, "of the next run\n")]
            await came.aclose()

    async def test_of_one_run_until_it_has_finished(self, node: FakeNode) -> None:
        node.add_run(1, [0])
        node.write(1, 0, b"first\n")
        async with asyncio.timeout(20):
            came = self.follow(node, number=1)
            assert await anext(came) == [(1, 0, "first\n")]
            rest = asyncio.create_task(anext(came, "the end"))
            node.write(1, 0, b"last\n")
            assert await rest == [(1, 0, "last\n")]
            rest = asyncio.create_task(anext(came, "the end"))
            await asyncio.sleep(0)
            node.mesh.runs["run1"].results[0] = run_pb2.RankResult()
            for session in node.sessions:
                assert session.run_ids == {"run1"}
                session.send(finished=pb.Finished(run_id="run1"))
            assert await rest == "the end"

    async def test_a_run_that_is_long_over_or_never_was_and_a_mesh_that_is_released(self, node: FakeNode) -> None:
        node.write(1, 0, b"text\n")
        assert await read(node, number=1, follow=True) == [(1, 0, "text\n")]
        assert await read(node, number=7, follow=True) == []
        async with asyncio.timeout(20):
            came = self.follow(node)
            assert await anext(came) == [(1, 0, "text\n")]
            node.state.meshes.clear()
            with pytest.raises(MeshNotFound):
                await anext(came)

    async def follow(self, node: Any, **options: Any) -> AsyncGenerator[list[Line], None]:
        request = pb.ReadLogsRequest(mesh_id="m", follow=True, **options)
        async with contextlib.aclosing(node.reader().read(request)) as batches:
            async for batch in batches:
                yield [(record.number, record.rank, record.text.decode()) for record in batch.records]


class TestDropped:
    """What a node keeps no longer reads as one line that says so."""

    SAID = "… 800 B of earlier lines dropped (limit 1.0 kB)\n"

    def drop(self, node: FakeNode, output: int, rank: int, end: int) -> None:
        files = RankFiles(node.paths.runs("m"), output, rank)
        files.note_dropped(Dropped(out=end, limit_bytes=1000))
        with files.path("out").open("r+b") as file:
            file.write(bytes(end))

    async def test_at_the_beginning(self, node: FakeNode) -> None:
        node.write(1, 0, b"".join(b"line %4d\n" % number for number in range(100)))
        self.drop(node, 1, 0, 800)
        kept = [(1, 0, f"line {number:4}\n") for number in range(80, 100)]
        assert await read(node) == [(1, 0, self.SAID), *kept]
        assert await read(node, last_lines=5) == kept[-5:]
        assert await read(node, last_lines=50) == [(1, 0, self.SAID), *kept]

    async def test_while_somebody_reads(self, node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(read_logs, "_PIECE_BYTES", 100)
        node.write(1, 0, b"line 0000\n" * 100)
        text = ""
        async for batch in node.reader().read(pb.ReadLogsRequest(mesh_id="m")):
            if not text:
                self.drop(node, 1, 0, 900)
            text += "".join(record.text.decode() for record in batch.records)
        assert text == "line 0000\n" * 10 + self.SAID + "line 0000\n" * 10
