"""Any line of a mesh's log: how many there are, also while they come, and those that are asked for."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.allocator.api import read_lines
from monarch_nb.allocator.api.read_lines import LogLines
from monarch_nb.allocator.logs.index import RankIndex
from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.logs.stored import Dropped
from monarch_nb.errors import MeshNotFound
from monarch_nb.ground.frames import encode_frame
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from unit.allocator.api.log_node import FakeNode

Part = tuple[int, int, int, int]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[FakeNode]:
    made = FakeNode(tmp_path)
    yield made
    made.close()


@pytest.fixture
async def log(node: Any) -> AsyncIterator[LogLines]:
    made = LogLines(node)
    yield made
    await made.close()


@pytest.fixture
def counted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little it is, a busy machine may take long to count it."""
    monkeypatch.setattr(read_lines, "COUNTING_S", 20.0)


def watch(log: LogLines, **request: Any) -> AsyncGenerator[pb.LogChange, None]:
    return log.watch(pb.WatchLogRequest(mesh_id="m", **request))


def parts(change: pb.LogChange) -> list[Part]:
    return [(part.number, part.rank, part.stdout_lines, part.stderr_lines) for part in change.parts]


async def read(log: LogLines, *windows: tuple[int, int, int, int], **request: Any) -> list[list[str]]:
    asked = [pb.LogWindow(number=run, rank=rank, first=first, count=count) for run, rank, first, count in windows]
    reply = await log.read(pb.ReadLinesRequest(mesh_id="m", windows=asked, **request))
    return [[line.text.decode() for line in window.lines] for window in reply.windows]


@pytest.mark.usefixtures("counted_at_once")
async def test_lines_of_runs_that_share_an_output_and_of_which_some_are_gone(node: FakeNode, log: LogLines) -> None:
    node.add_run(1, [0, 1])
    node.add_run(3, [0, 1], output=2)
    for run in (1, 2):
        node.write(run, 0, b"a\nb\n")
        node.write(run, 0, encode_frame(run_pb2.Mark(stdout_bytes=4).SerializeToString()), kind="marks")
        node.write(run, 0, b"c\nbd", kind="err")
        node.write(run, 1, b"e\n\n" * 10)
    runs = node.paths.runs("m")
    RankFiles(runs, 2, 1).note_dropped(Dropped(out=15, limit_bytes=1000))
    (runs / "2" / "1.out").write_bytes(bytes(15) + b"e\n\n" * 5)
    [change] = [change async for change in watch(log)]
    windows = [pb.LogWindow(number=part.number, rank=part.rank, count=99) for part in change.parts]
    both = await log.read(pb.ReadLinesRequest(mesh_id="m", windows=windows))
    searches = (
        pb.SearchLogRequest(mesh_id="m", windows=windows, text="b", stream=stream)
        for stream in (pb.LOG_STREAM_UNSPECIFIED, pb.LOG_STREAM_STDERR)
    )
    found = [[list(array("Q", packed)) for packed in (await log.search(search)).windows] for search in searches]
    assert parts(change) == [(1, 0, 2, 2), (1, 1, 20, 0), (3, 0, 2, 2), (3, 1, 11, 0)]
    assert [line.text for line in both.windows[0].lines] == [b"a", b"b", b"c", b"bd"]
    assert found == [[[1, 3], [], [1, 3], []], [[1], [], [1], []]], "of both streams, and of stderr"


@pytest.mark.usefixtures("counted_at_once")
class TestWatch:
    async def test_what_there_is_and_what_is_known_of_runs(self, node: FakeNode, log: LogLines) -> None:
        run = {"run_id": "x", "number": 1, "cell": {"cell_number": 7}}
        node.add(pb.Submit(mesh_id="m", run=run, ranks=[0, 1], title="train()"))
        node.write(1, 0, b"a\nb\n")
        node.write(1, 1, b"c\nd", kind="err")
        node.write(5, 0, b"of a run that is forgotten\n")
        [change] = [change async for change in watch(log)]
        assert change.complete
        assert parts(change) == [(1, 0, 2, 0), (1, 1, 0, 2), (5, 0, 1, 0)]
        assert list(change.runs) == [
            pb.LogRun(number=1, title="train()", cell_number=7, finished=False),
            pb.LogRun(number=5, finished=True),
        ]
        [change] = [change async for change in watch(log, ranks=[0], number=1)]
        assert parts(change) == [(1, 0, 2, 0)]
        assert [change async for change in watch(log, number=3)] == [pb.LogChange(complete=True)]

    async def test_how_runs_failed_is_told_also_where_nothing_was_printed(self, node: FakeNode, log: LogLines) -> None:
        failure = run_pb2.Failure(name="ZeroDivisionError", message="division by zero", traceback="long")
        failed = run_pb2.RankResult(rank=1, outcome=run_pb2.OUTCOME_ERROR, failure=failure)
        async with asyncio.timeout(20), aclosing(watch(log, follow=True)) as changes:
            await anext(changes)
            node.add_run(1, [0, 1])
            node.mesh.runs["run1"].results |= {0: run_pb2.RankResult(outcome=run_pb2.OUTCOME_OK), 1: failed}
            [run] = (await anext(changes)).runs
        assert (run.number, run.finished) == (1, True)
        assert [(each.rank, each.failure.name, each.failure.traceback) for each in run.failures] == [
            (1, "ZeroDivisionError", "")
        ]
        assert not [change.runs async for change in watch(log, number=2) if change.runs], "another run's log"

    async def test_what_comes(self, node: FakeNode, log: LogLines) -> None:
        node.add_run(1, [0, 1])
        node.write(1, 0, b"a\n")
        async with asyncio.timeout(20), aclosing(watch(log, follow=True)) as changes:
            assert parts(await anext(changes)) == [(1, 0, 1, 0)]
            node.write(1, 1, b"b\nc")
            assert parts(await anext(changes)) == [(1, 1, 2, 0)]
            node.write(1, 1, b"c")
            change = await anext(changes)
            assert parts(change) == [(1, 1, 2, 0)], "its newest line is longer"
            assert change.parts[0].size_bytes == 4
            node.add_run(2, [0])
            node.write(2, 0, b"d\n")
            change = await anext(changes)
            assert parts(change) == [(2, 0, 1, 0)]
            assert [run.number for run in change.runs] == [2]
            node.mesh.runs["run2"].results[0] = run_pb2.RankResult(outcome=run_pb2.OUTCOME_OK)
            assert list((await anext(changes)).runs) == [pb.LogRun(number=2, finished=True)]

    async def test_a_run_has_finished_when_all_its_lines_are_told(
        self, node: FakeNode, log: LogLines, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node.add_run(1, [0, 1])
        node.write(1, 0, b"a\n")
        node.write(1, 1, b"b\n")
        extend = RankIndex.extend

        async def extend_as_it_ends(index: RankIndex) -> None:
            await extend(index)
            results = node.mesh.runs["run1"].results
            if index.files.rank == 1 and not results:  # rank 0 was counted a moment ago
                node.write(1, 0, b"its last line\n")
                results.update(dict.fromkeys((0, 1), run_pb2.RankResult(outcome=run_pb2.OUTCOME_OK)))

        lines: dict[int, int] = {}
        async with asyncio.timeout(20), aclosing(watch(log, follow=True)) as changes:
            monkeypatch.setattr(RankIndex, "extend", extend_as_it_ends)
            async for change in changes:
                lines |= {part.rank: part.stdout_lines for part in change.parts}
                if any(run.finished for run in change.runs):
                    break
        assert lines == {0: 2, 1: 1}

    async def test_it_pauses_between_changes_however_much_comes(
        self, node: FakeNode, log: LogLines, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node.add_run(1, [0])
        lines, sleep = 0, asyncio.sleep
        pauses_s: list[float] = []

        async def note(pause_s: float) -> None:
            pauses_s.append(pause_s)
            await sleep(0.001)

        monkeypatch.setattr(asyncio, "sleep", note)
        async with asyncio.timeout(20), aclosing(watch(log, follow=True)) as changes:
            assert parts(await anext(changes)) == []
            for number in range(5):
                coming = asyncio.create_task(anext(changes))
                while not coming.done():
                    node.write(1, 0, b"line\n" * 100)
                    lines += 100
                    await sleep(0.001)
                assert 0 < coming.result().parts[0].stdout_lines <= lines
                assert pauses_s.count(read_lines.FLOOD_INTERVAL_S) > number

    async def test_the_run_of_text_is_that_which_wrote_it_also_if_forgotten(
        self, node: FakeNode, log: LogLines
    ) -> None:
        node.add_run(1, [0])
        node.add_run(2, [0], output=1)
        node.write(1, 0, b"by 2\n")
        async with asyncio.timeout(20), aclosing(watch(log, follow=True)) as changes:
            assert parts(await anext(changes)) == [(2, 0, 1, 0)]
            node.mesh.runs.clear()
            node.write(1, 0, b"late\n")
            assert parts(await anext(changes)) == [(2, 0, 2, 0)]
            assert await read(log, (2, 0, 0, 9)) == [["by 2", "late"]]

    async def test_until_the_mesh_is_released(self, node: FakeNode, log: LogLines) -> None:
        async with asyncio.timeout(20), aclosing(watch(log, follow=True)) as changes:
            await anext(changes)
            node.state.meshes.clear()
            for more in (anext(changes), read(log, (1, 0, 0, 1))):
                with pytest.raises(MeshNotFound):
                    await more


async def test_an_index_is_forgotten_that_nobody_uses(node: FakeNode, log: LogLines) -> None:
    """It takes memory of the allocator, in proportion to the lines."""
    node.write(1, 0, b"a\n")
    node.write(2, 0, b"b\n")
    await read(log, (1, 0, 0, 1), (2, 0, 0, 1))
    known = log._indices["m"]
    known[1, 0].used_s -= 2 * read_lines.KEPT_S
    log._forget()
    assert list(known) == [(2, 0)]
    assert await read(log, (1, 0, 0, 1)) == [["a"]], "it is made again"


class TestRead:
    async def test_windows(self, node: FakeNode, log: LogLines) -> None:
        node.write(1, 0, b"a\nb\nc\n")
        node.write(1, 1, b"d\n")
        node.write(1, 1, b"e\n", kind="err")
        windows = [(1, 0, 1, 1), (1, 1, 0, 5), (1, 0, 2, 5), (1, 0, 3, 5), (9, 0, 0, 5), (1, 0, 0, 0)]
        assert await read(log, *windows) == [["b"], ["d", "e"], ["c"], [], [], []]
        assert await read(log, (1, 1, 0, 9), stream=pb.LOG_STREAM_STDERR) == [["e"]]
        assert await read(log, (1, 0, 1, 9), stream=pb.LOG_STREAM_STDOUT) == [["b", "c"]]
        node.write(2, 0, "éé\nabc\n".encode())
        asked = pb.ReadLinesRequest(mesh_id="m", windows=[{"number": 2, "count": 2}], max_line_bytes=3)
        lines = (await log.read(asked)).windows[0].lines
        assert [(line.text.decode(), line.size_bytes) for line in lines] == [("é", 4), ("abc", 3)], "between characters"

    @pytest.mark.parametrize("digests", [False, True])
    async def test_what_does_not_fit_in_a_reply_is_asked_for_again(
        self, node: FakeNode, log: LogLines, monkeypatch: pytest.MonkeyPatch, digests: bool
    ) -> None:
        monkeypatch.setattr(read_lines, "_REPLY_BYTES", 2000)
        node.write(1, 0, b"".join(b"%d\n" % number for number in range(400)))
        node.write(1, 1, b"x" * 5000 + b"\nlast\n")
        wanted = [pb.LogWindow(number=1, rank=0, count=400), pb.LogWindow(number=1, rank=1, count=2)]
        expected = [[str(number).encode() for number in range(400)], [b"x" * 2000, b"last"]]
        got: list[list[Any]] = [[], []]
        replies = 0
        while any(window.count for window in wanted):
            reply = await log.read(pb.ReadLinesRequest(mesh_id="m", windows=wanted, digests=digests))
            replies += 1
            for window, told, so_far in zip(wanted, reply.windows, got, strict=True):
                came = list(array("Q", told.digests)) if digests else [line.text for line in told.lines]
                so_far += came
                window.first += len(came)
                window.count -= len(came)
                assert told.cut == (window.count > 0)
        assert replies > 1
        assert [len(lines) for lines in got] == [400, 2]
        if not digests:
            assert got == expected
