"""Any line by its number: as many, in the order and of the text that reading everything gives."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_nb.allocator.logs import index
from monarch_nb.allocator.logs.index import Line, RankIndex, digests
from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.logs.stored import Dropped
from monarch_nb.ground.frames import encode_frame
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from unit.allocator.logs.test_output import Writer as RankWriter

BOTH, STDOUT, STDERR = pb.LOG_STREAM_UNSPECIFIED, pb.LOG_STREAM_STDOUT, pb.LOG_STREAM_STDERR
PLENTY = 1 << 30


class Writer(RankWriter):
    """Knows the lines, too."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.lines: list[list[object]] = []
        self.unfinished: dict[str, list[object]] = {}

    def write(self, kind: str, text: bytes) -> None:
        super().write(kind, text)
        for piece in text.splitlines(keepends=True) if b"\r" not in text else [text]:
            line = self.unfinished.pop(kind, None)
            if line is None:
                line = [kind, b""]
                self.lines.append(line)
            line[1] += piece.removesuffix(b"\n")  # type: ignore[operator]
            if not piece.endswith(b"\n"):
                self.unfinished[kind] = line

    def size_bytes(self) -> int:
        return sum(self.files.size_bytes(kind) for kind in ("out", "err"))

    def expected(self, stream: int = BOTH) -> list[Line]:
        wanted = {BOTH: ("out", "err"), STDOUT: ("out",), STDERR: ("err",)}[stream]
        return [(kind, text, len(text)) for kind, text in self.lines if kind in wanted]  # type: ignore[misc, arg-type]


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every boundary is met often."""
    monkeypatch.setattr(index, "BLOCK_BYTES", 16)
    monkeypatch.setattr(index, "_STEP_BYTES", 40)
    monkeypatch.setattr(index, "_BATCH_BYTES", 100)
    monkeypatch.setattr(index, "_MARKS_BYTES", 50)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.usefixtures("small_steps")
async def test_as_reading_everything(writer: Writer, seed: int) -> None:
    chance = random.Random(seed)
    index = RankIndex(writer.files, 1)
    for _ in range(chance.randint(1, 6)):
        for _ in range(chance.randint(0, 25)):
            if text := printed(chance, 3, [b"", b"begun", "é".encode()]):
                writer.write(chance.choice(["out", "out", "err"]), text)
            if chance.random() < 0.1:
                writer.show("{}" + "x" * chance.choice([1, 300]))
        before = {stream: (await index.read(stream, 0, PLENTY, PLENTY))[:-2] for stream in (BOTH, STDOUT, STDERR)}
        await index.extend()
        assert not index.is_behind()
        for stream, lines in before.items():
            await check(index, stream, writer.expected(stream), chance)
            if stream:
                assert writer.expected(stream)[: len(lines)] == lines, "numbers do not change"


def printed(chance: random.Random, most_lines: int, ends: list[bytes]) -> bytes:
    """Return some lines, and perhaps the beginning of one."""
    words = [b"", b"a", b"loss 2.31", b"x" * chance.randint(0, 60)]
    return b"".join(chance.choice(words) + b"\n" for _ in range(chance.randint(0, most_lines))) + chance.choice(ends)


async def check(index: RankIndex, stream: pb.LogStream.ValueType, expected: list[Line], chance: random.Random) -> None:
    assert index.lines(stream) == len(expected)
    assert await index.read(stream, 0, PLENTY, PLENTY) == expected
    for _ in range(5):
        first = chance.randint(0, len(expected) + 1)
        last = first + chance.randint(0, 20)
        assert await index.read(stream, first, last, PLENTY) == expected[first:last]
        ranges = index.ranges(stream, first, last)
        found: list[int] = []
        for kind, (begin, end) in ranges.items():
            of_kind = [number for number, line in enumerate(expected) if line[0] == kind]
            assert of_kind[begin:end] == [n for n in range(first, min(last, len(expected))) if expected[n][0] == kind]
            if stream == BOTH:
                found += index.number_both(kind, array("Q", range(begin, end)))
        if stream == BOTH:
            assert sorted(found) == list(range(min(first, len(expected)), min(last, len(expected))))


async def test_a_line_that_goes_on_stays_where_it_began(writer: Writer) -> None:
    index = RankIndex(writer.files, 1)
    writer.write("err", b"\r10%")
    writer.write("out", b"one\n")
    await index.extend()
    assert index.part.stderr_lines == index.part.stdout_lines == 1
    size_bytes = index.part.size_bytes
    writer.write("err", b"\r20%")
    await index.extend()
    assert await index.read(BOTH, 0, 9, PLENTY) == [("err", b"\r10%\r20%", 8), ("out", b"one", 3)]
    assert index.part.size_bytes == size_bytes + 4
    writer.write("err", b"\n")
    writer.write("out", b"two\n")
    await index.extend()
    assert [text for _, text, _ in await index.read(BOTH, 1, 9, PLENTY)] == [b"one", b"two"]


@pytest.mark.parametrize("end", [b"", b"\n", b"\nnext", b"\nnext\n"])
async def test_of_a_very_long_line_the_beginning_and_its_size(writer: Writer, end: bytes) -> None:
    writer.write("out", b"first\n" + b"12345\n" * 9 + b"x" * 300_000 + end)
    index = RankIndex(writer.files, 1)
    await index.extend()
    assert await index.read(BOTH, 10, 12, 1000) == [("out", b"x" * 1000, 300_000)]
    assert digests(await index.read(BOTH, 10, 11, 100_000)) == digests(await index.read(BOTH, 10, 11, 200_000))
    told = [digests([line]) for line in (("out", b"a", 1), ("out", b"b", 1), ("err", b"a", 1))]
    assert len(set(told)) == 3, "they tell texts and streams apart"
    as_many_as_fit = [len(await index.read(stream, 1, 10, size)) for stream, size in ((STDOUT, 20), (BOTH, 24))]
    assert as_many_as_fit == [3, 4]


async def test_a_file_that_is_gone_or_shorter_leaves_what_was_counted(writer: Writer) -> None:
    writer.write("out", b"a\nb\n")
    index = RankIndex(writer.files, 1)
    await index.extend()
    writer.files.path("out").write_bytes(b"c")
    await index.extend()
    assert index.lines(BOTH) == 2
    writer.files.path("marks").write_bytes(encode_frame(run_pb2.Mark(stdout_bytes=99).SerializeToString()))
    writer.files.path("out").write_bytes(b"c" * 50)
    with pytest.raises(OSError, match="became shorter"):
        await index.extend()
    await index.extend()
    assert index.lines(BOTH) == 2


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.usefixtures("small_steps")
async def test_lines_that_are_dropped_keep_their_numbers_and_say_so(writer: Writer, seed: int) -> None:
    chance = random.Random(seed)
    index = RankIndex(writer.files, 1)
    dropped = Dropped(limit_bytes=1)
    gone, cut_off = {"out": 0, "err": 0}, {"out": 0, "err": 0}
    for _ in range(6):
        for _ in range(chance.randint(0, 10)):
            if text := printed(chance, 3, [b"", b"b"]):
                writer.write(chance.choice(["out", "err"]), text)
        counted = None  # what is dropped now was never counted
        if chance.random() < 0.8:
            await index.extend()
            counted = index.part
        kind = chance.choice(["out", "err"])
        lines = [text for _, text, _ in writer.expected(STDOUT if kind == "out" else STDERR)]
        if counted and len(lines) > gone[kind]:
            gone[kind] = chance.randint(gone[kind] + 1, len(lines))
            end = sum(len(one) + 1 for one in lines[: gone[kind]]) - cut_off[kind]
            if gone[kind] == len(lines) and writer.unfinished.pop(kind, None):
                end -= 1
                cut_off[kind] += 1
            dropped = replace(dropped, **{kind: end})
            drop(writer.files, dropped)
        for stream, kind in ((STDOUT, "out"), (STDERR, "err")):
            line = dropped.line(dropped.before(kind))
            live = writer.expected(stream)[gone[kind] :]
            before = [(kind, line, len(line))] * gone[kind]
            if counted:
                assert await index.read(stream, 0, PLENTY, PLENTY) == (before or live)
                assert await index.read(stream, gone[kind], PLENTY, PLENTY) == live
            fresh = RankIndex(writer.files, 1)
            await fresh.extend()
            assert fresh.lines(stream) == len(live) + bool(before)
            assert await fresh.read(stream, 0, 1, PLENTY) == (before or live)[:1]
            assert await fresh.read(stream, bool(before), PLENTY, PLENTY) == live
            assert fresh.part.size_bytes == writer.size_bytes()


def drop(files: RankFiles, dropped: Dropped) -> None:
    """As a hole reads."""
    files.note_dropped(dropped)
    for kind in ("out", "err"):
        if end := dropped.before(kind):
            with files.path(kind).open("r+b") as file:
                file.write(bytes(end))


@pytest.mark.usefixtures("small_steps")
async def test_what_is_dropped_before_it_was_counted_is_one_line(writer: Writer) -> None:
    index = RankIndex(writer.files, 1)
    writer.write("out", b"one\nbegun")
    await index.extend()
    writer.write("out", b" here\n" + b"".join(b"line %d\n" % number for number in range(20)))
    dropped = Dropped(out=writer.files.size_bytes("out") - len(b"line 19\n"), limit_bytes=1)
    drop(writer.files, dropped)
    await index.extend()
    line = dropped.line(dropped.out)
    assert await index.read(BOTH, 0, 2, PLENTY) == [("out", line, len(line))] * 2
    assert await index.read(BOTH, 2, 9, PLENTY) == [("out", b"line 19", 7)]
    writer.write("out", b"more\n")
    await index.extend()
    assert [text for _, text, _ in await index.read(BOTH, 2, 9, PLENTY)] == [b"line 19", b"more"]
