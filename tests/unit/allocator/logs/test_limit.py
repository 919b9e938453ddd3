"""What is dropped when ranks print too much: the oldest, as holes that every reader knows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch_nb.allocator.logs import limit
from monarch_nb.allocator.logs.limit import LogLimit, StoredFile, StoredOutput, choose, default_limit_bytes
from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.logs.stored import Dropped, KeptLogs
from monarch_nb.config import LOG_LIMIT_VARIABLE, NodePaths
from monarch_nb.errors import UsageError
from monarch_nb.ground.frames import encode_frame
from monarch_nb.proto import run_pb2

MB = 10**6
LINE = b"x" * 99 + b"\n"


def stored(output: int, *used_mb: int, finished: bool = True) -> StoredOutput:
    files = [RankFiles(Path("runs"), output, rank) for rank in range(len(used_mb))]
    of_ranks = (StoredFile(file, "out", used * MB, used * MB) for file, used in zip(files, used_mb, strict=True))
    return StoredOutput(tuple(of_ranks), finished, written_s=output)


def limit_of(runs: Path, limit_bytes: int) -> LogLimit:
    paths = NodePaths(runs)
    return LogLimit(paths, {}, KeptLogs(paths, print), limit_bytes)


def chosen(outputs: list[StoredOutput], limit_mb: int) -> dict[tuple[int, int], int]:
    return {(file.files.output, file.files.rank): kept // MB for file, kept in choose(outputs, limit_mb * MB)}


class TestChoosing:
    def test_the_oldest_runs_go_and_of_the_last_of_them_a_part(self) -> None:
        outputs = [stored(4, 20, finished=False), stored(3, 40), stored(2, 10, 20), stored(1, 20)]
        assert chosen(outputs, 110) == {}, "there is room"
        assert chosen(outputs, 100) == {(1, 0): 0}
        assert chosen(outputs, 80) == {(1, 0): 0, (2, 0): 6, (2, 1): 6}
        assert chosen(outputs, 50) == {(1, 0): 0, (2, 0): 0, (2, 1): 0, (3, 0): 25}

    def test_of_what_goes_on_the_longest_become_equal_and_the_newest_stays(self) -> None:
        outputs = [stored(1, 10), stored(2, 70, 5, 30, finished=False)]
        assert chosen(outputs, 100) == {(1, 0): 0, (2, 0): 55}
        assert chosen(outputs, 50) == {(1, 0): 0, (2, 0): 20, (2, 2): 20}
        assert [kept for _, kept in choose([stored(1, 9, finished=False)], 1)] == [limit.NEWEST_BYTES]


class TestSweeping:
    @pytest.fixture
    def runs(self, tmp_path: Path) -> Path:
        made = tmp_path / "runs"
        made.mkdir()
        return made

    def write(self, runs: Path, output: int, text: bytes, rank: int = 0, kind: str = "out") -> RankFiles:
        files = RankFiles(runs, output, rank)
        files.path(kind).parent.mkdir(exist_ok=True)
        with files.path(kind).open("ab") as file:
            file.write(text)
        os.utime(files.path(kind), (output, output))
        return files

    def sweep(self, runs: Path, limit_bytes: int, going_on: set[int] = set()) -> int:  # noqa: B006
        return limit_of(runs, limit_bytes).sweep({runs: going_on})

    def test_the_disk_gets_its_room_back_and_positions_stay(self, runs: Path) -> None:
        old, new = (self.write(runs, output, LINE * 10_000) for output in (1, 2))
        assert self.sweep(runs, MB) <= MB
        assert (old.path("out").stat().st_blocks, old.dropped().out) == (0, MB)
        left = new.dropped().out
        assert left % len(LINE) == 0, "a line is dropped whole"
        assert MB - left <= 0.9 * MB
        assert new.path("out").stat().st_blocks * 512 < 0.91 * MB
        assert new.read("out", left, MB) == LINE * ((MB - left) // len(LINE))
        assert new.size_bytes("out") == MB
        self.write(runs, 2, b"more\n")
        assert new.read("out", MB, MB + 5) == b"more\n"

    def test_a_run_that_was_shortened_is_still_the_oldest(self, runs: Path) -> None:
        old, new = (self.write(runs, output, LINE * 10_000) for output in (1, 2))
        assert self.sweep(runs, 19 * MB // 10) <= 2 * MB
        assert 0 < old.dropped().out < MB
        self.write(runs, 3, LINE * 7_000)
        self.sweep(runs, 19 * MB // 10)
        assert (old.dropped().out > 0.99 * MB, new.dropped().out) == (True, 0)

    def test_what_meshes_printed_that_have_ended_goes_first(self, runs: Path, tmp_path: Path) -> None:
        ended = tmp_path / "ended"
        ended.mkdir()
        old, new = self.write(ended, 1, LINE * 10_000), self.write(runs, 2, LINE * 10_000)
        limit_of(runs, 15 * MB // 10).sweep({runs: {2}, ended: None})
        assert (old.dropped().out > MB // 2, new.dropped().out) == (True, 0)

    def test_marks_are_dropped_whole(self, runs: Path) -> None:
        mark = run_pb2.Mark(display=run_pb2.Display(content_json="x" * 1_000)).SerializeToString()
        files = self.write(runs, 1, encode_frame(mark) * 2_000, kind="marks")
        self.sweep(runs, MB, {1})
        left = files.dropped().marks
        assert left % (len(mark) + 4) == 0
        output = files.read_since(run_pb2.Cursor())
        assert output is not None
        assert {item.WhichOneof("item") for item in output.items} == {"display"}
        assert len(output.items) == (files.size_bytes("marks") - left) // (len(mark) + 4)

    def test_a_follower_is_told_what_is_gone(self, runs: Path) -> None:
        files = self.write(runs, 1, LINE * 20_000)
        self.sweep(runs, MB, {1})
        output = files.read_since(run_pb2.Cursor())
        assert output is not None
        first, second, *_ = (item.stdout for item in output.items)
        assert first == files.dropped().line(files.dropped().out) + b"\n"
        assert second.startswith(LINE)
        assert not any(b"\0" in item.stdout for item in output.items)
        assert files.tail_lines("out")[-1] == LINE.decode().strip()

    def test_small_runs_go_too(self, runs: Path) -> None:
        for output in range(1, 101):
            self.write(runs, output, b"hello\n")
        used = self.sweep(runs, 40 * 4096)
        assert used <= 40 * 4096
        assert [RankFiles(runs, output, 0).dropped().out for output in (1, 50, 100)] == [6, 6, 0]

    def test_when_the_disk_is_full_it_is_noted_afterwards(self, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.write(runs, 1, LINE * 20_000)
        note, punched = RankFiles.note_dropped, []

        def full_until_punched(files: RankFiles, dropped: Dropped) -> None:
            if files.path("out").stat().st_blocks * 512 > MB:
                punched.append(False)
                raise OSError(28, "No space left on device")
            note(files, dropped)

        monkeypatch.setattr(RankFiles, "note_dropped", full_until_punched)
        assert self.sweep(runs, MB) <= MB
        assert (punched, RankFiles(runs, 1, 0).dropped().out > 0) == ([False], True)

    def test_without_holes_nothing_is_said_to_be_gone(self, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files = self.write(runs, 1, LINE * 20_000)

        def refuse(*_: object, **__: object) -> None:
            raise OSError(95, "its file system makes no holes in files")

        monkeypatch.setattr(limit, "_punch", refuse)
        with pytest.raises(OSError, match="makes no holes"):
            self.sweep(runs, MB)
        assert files.dropped().out == 0


def test_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOG_LIMIT_VARIABLE, raising=False)
    assert 0 < default_limit_bytes(tmp_path) <= 20 * 10**9
    monkeypatch.setenv(LOG_LIMIT_VARIABLE, "3GB")
    assert default_limit_bytes(tmp_path) == 3 * 10**9
    monkeypatch.setenv(LOG_LIMIT_VARIABLE, "much")
    with pytest.raises(UsageError, match="MONARCH_NB_LOG_LIMIT is a size"):
        default_limit_bytes(tmp_path)
