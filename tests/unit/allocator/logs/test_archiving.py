"""Old outputs in the archive: every byte is there, once, whatever happens in between, and what may grow stays out."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_nb.allocator.logs.archive import PIECE_BYTES, Archive, Archives
from monarch_nb.allocator.logs.archiving import NEWEST, Archiving, Outputs, put_away
from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.logs.stored import stored_outputs
from monarch_nb.config import NodePaths
from monarch_nb.proto import run_pb2

TEXT = b"".join(b"line %d\n" % number for number in range(20_000))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return NodePaths(tmp_path).runs("m")


@pytest.fixture
def archive(runs: Path) -> Iterator[Archive]:
    runs.mkdir(parents=True)
    made = Archive(runs)
    yield made
    made.close()


def write(runs: Path, output: int, text: bytes = b"a\n", rank: int = 0, kind: str = "out") -> RankFiles:
    files = RankFiles(runs, output, rank)
    files.path(kind).parent.mkdir(exist_ok=True)
    files.path(kind).write_bytes(text)
    return files


def archived(files: RankFiles, archive: Archive) -> RankFiles:
    return RankFiles(files.runs, files.output, files.rank, archive)


class TestOneOutput:
    def test_every_byte_is_there(self, runs: Path, archive: Archive) -> None:
        files = archived(write(runs, 7, TEXT), archive)
        write(runs, 7, b"b", kind="err")
        assert put_away(files, archive, {(7, 0): 9})
        assert list((runs / "7").iterdir()) == []
        assert files.end() == run_pb2.Cursor(stdout_bytes=len(TEXT), stderr_bytes=1)
        for start in (0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, len(TEXT) - 1, len(TEXT)):
            for end in (start, start + 1, start + PIECE_BYTES, start + 2 * PIECE_BYTES + 1, len(TEXT) + 5):
                assert files.read("out", start, end) == TEXT[start:end]
        assert files.run_number({}) == 9
        assert files.tail_lines("out")[-1] == "line 19999"
        entry = files.archived()
        assert entry is not None
        assert (entry.out_lines, entry.err_lines, entry.used_bytes) == (20_000, 1, len(TEXT) + 1)

    def test_the_next_allocator_finds_it(self, runs: Path, archive: Archive) -> None:
        files = write(runs, 7, TEXT)
        put_away(archived(files, archive), archive, {})
        again = Archive(runs)
        assert (again.newest, again.used_bytes) == (7, len(TEXT))
        assert archived(files, again).read("out", 0, len(TEXT)) == TEXT
        again.close()


class TestWhoeverWrites:
    def test_an_open_file_stays_with_the_others_of_its_rank(self, runs: Path, archive: Archive) -> None:
        files = archived(write(runs, 7), archive)
        with write(runs, 7, b"", kind="err").path("err").open("ab") as opened:
            assert not put_away(files, archive, {})
            opened.write(b"late\n")
        assert put_away(files, archive, {})
        assert files.read("err", 0, 9) == b"late\n"


class Killed(BaseException):
    """The allocator ends here."""


class TestKilled:
    """Whoever is killed in between loses nothing and has nothing twice."""

    @pytest.mark.parametrize("left", [0, 1, 2])
    def test_while_the_files_go(self, runs: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
        files = archived(write(runs, 7, TEXT), archive)
        write(runs, 7, b"error\n", kind="err")
        unlink, gone = os.unlink, []

        def die(path: str) -> None:
            if len(gone) == left:
                raise Killed
            gone.append(path)
            unlink(path)

        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", die)
            with pytest.raises(Killed):
                put_away(files, archive, {})
        again = Archive(runs)
        for _ in range(2):
            files = archived(files, again)
            assert files.end() == run_pb2.Cursor(stdout_bytes=len(TEXT), stderr_bytes=6)
            assert files.read("out", 0, 10**9) + files.read("err", 0, 9) == TEXT + b"error\n"
            assert again.used_bytes == len(TEXT) + 6
            assert put_away(files, again, {})
        again.close()


class TestWhatIsArchived:
    def outputs(self, runs: Path, archive: Archive, busy: frozenset[int] = frozenset()) -> Outputs:
        return Outputs(runs, archive, busy, {})

    def test_all_but_the_newest_and_those_in_use(self, runs: Path, archive: Archive) -> None:
        for output in range(1, NEWEST + 6):
            write(runs, output, b"%d\n" % output, rank=output % 2)
        made = Archiving(NodePaths(runs), {}, Archives(), threading.Lock())
        made.archive(self.outputs(runs, archive, busy=frozenset({2})))
        assert stored_outputs(runs) == [2, *range(6, NEWEST + 6)]
        texts = [RankFiles(runs, output, output % 2, archive).read("out", 0, 9) for output in range(1, NEWEST + 6)]
        assert texts == [b"%d\n" % output for output in range(1, NEWEST + 6)]
        assert [entry.output for rank in (0, 1) for entry in archive.of_rank(rank)] == [4, 1, 3, 5]
        assert [entry.output for entry in archive.of_rank(1, newest_first=True)] == [5, 3, 1]
        assert [entry.output for entry in archive.of_rank(1, 3)] == [3]
