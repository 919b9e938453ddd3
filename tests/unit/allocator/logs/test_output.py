"""Reading a rank's files: one ordered sequence, from any position, floods elided with true counts."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch_nb.allocator.logs import output
from monarch_nb.allocator.logs.output import FLOOD_BYTES, PART_BYTES, RankFiles
from monarch_nb.allocator.logs.stored import Dropped, stored_outputs
from monarch_nb.ground.frames import encode_frame
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

Piece = tuple[str, bytes]


class Writer:
    """Writes as a rank does: to the files, with a mark at each switch of stream and for each display."""

    def __init__(self, runs: Path, output: int = 1, rank: int = 0) -> None:
        self.files = RankFiles(runs, output, rank)
        (runs / str(output)).mkdir(parents=True, exist_ok=True)
        self._last = ""

    def append(self, kind: str, data: bytes) -> None:
        with self.files.path(kind).open("ab") as file:
            file.write(data)

    def mark(self, display: run_pb2.Display | None = None) -> None:
        sizes = {"stdout_bytes": self.files.size_bytes("out"), "stderr_bytes": self.files.size_bytes("err")}
        self.append("marks", encode_frame(run_pb2.Mark(display=display, **sizes).SerializeToString()))

    def write(self, kind: str, data: bytes) -> None:
        if self._last not in ("", kind):
            self.mark()
        self._last = kind
        self.append(kind, data)

    def show(self, content: str) -> None:
        self.mark(run_pb2.Display(content_json=content, kind=run_pb2.Display.KIND_SHOW))

    def read(self) -> pb.RankOutput:
        """Return all that there is to send."""
        found = self.files.read_since(run_pb2.Cursor())
        assert found is not None
        return found


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def pieces(output: pb.RankOutput | None) -> list[Piece]:
    """Return what was read, neighbours of one stream together."""
    found: list[Piece] = []
    for item in output.items if output else []:
        match item.WhichOneof("item"):
            case "stdout":
                piece = ("out", item.stdout)
            case "stderr":
                piece = ("err", item.stderr)
            case "display":
                piece = ("display", item.display.content_json.encode())
            case "elided":
                piece = ("elided", b"%d lines" % item.elided.lines)
            case _:
                raise AssertionError(item)
        if found and found[-1][0] == piece[0] and piece[0] in ("out", "err"):
            found[-1] = (piece[0], found[-1][1] + piece[1])
        else:
            found.append(piece)
    return found


def everything(files: RankFiles) -> list[Piece]:
    return pieces(files.read_since(run_pb2.Cursor()))


def test_streams_and_displays_keep_their_order(writer: Writer) -> None:
    assert writer.files.read_since(run_pb2.Cursor()) is None, "nothing written is nothing to send"
    writer.write("out", b"\xff\xfe\x80 caf\xe9 \xe2\x82\n")
    writer.write("err", b"two\n")
    writer.show('{"n": 3}')
    writer.write("err", b"four\n")
    writer.write("out", b"five")
    read = writer.read()
    assert pieces(read) == [
        *[("out", b"\xff\xfe\x80 caf\xe9 \xe2\x82\n"), ("err", b"two\n"), ("display", b'{"n": 3}')],
        *[("err", b"four\n"), ("out", b"five")],
    ]
    assert writer.files.read_since(read.cursor) is None


steps = st.lists(
    st.tuples(st.sampled_from(["out", "err", "display", "look"]), st.binary(min_size=1, max_size=6)), max_size=25
)


@given(steps)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_cursors_resume_exactly_wherever_one_looked(tmp_path_factory: pytest.TempPathFactory, steps: object) -> None:
    writer = Writer(tmp_path_factory.mktemp("runs"))
    cursor, seen, written = run_pb2.Cursor(), [], []  # type: ignore[var-annotated]

    def look() -> None:
        nonlocal cursor
        if (read := writer.files.read_since(cursor)) is not None:
            seen.extend(pieces(read))
            cursor = read.cursor

    for kind, data in steps:  # type: ignore[attr-defined]
        if kind == "look":
            look()
        elif kind == "display":
            writer.show(data.hex())
            written.append(("display", data.hex().encode()))
        else:
            writer.write(kind, data)
            written.append((kind, data))
    look()
    assert joined(seen) == joined(written)
    assert joined(everything(writer.files)) == joined(written)
    assert cursor == writer.files.end()


def joined(found: list[Piece]) -> list[Piece]:
    result: list[Piece] = []
    for kind, data in found:
        if result and result[-1][0] == kind != "display":
            result[-1] = (kind, result[-1][1] + data)
        else:
            result.append((kind, data))
    return result


class TestFlood:
    def test_its_middle_is_elided_with_true_counts(self, writer: Writer) -> None:
        lines = [b"line %d\n" % number for number in range(20_000)]
        writer.write("err", b"".join(lines))
        read = writer.read()
        head, elided, tail = read.items
        shown = head.stderr.splitlines(keepends=True) + tail.stderr.splitlines(keepends=True)
        assert shown == lines[: len(shown) - tail.stderr.count(b"\n")] + lines[-tail.stderr.count(b"\n") :]
        assert (elided.elided.stderr, elided.elided.lines) == (True, len(lines) - len(shown))
        assert elided.elided.size_bytes + len(head.stderr) + len(tail.stderr) == len(b"".join(lines))
        assert len(head.stderr) + len(tail.stderr) < FLOOD_BYTES
        assert read.cursor == writer.files.end()

    def test_exactly_the_limit_is_none_and_what_comes_after_one_is_whole_again(self, writer: Writer) -> None:
        writer.write("out", b"x" * FLOOD_BYTES)
        assert everything(writer.files) == [("out", b"x" * FLOOD_BYTES)]
        writer.write("out", b"x\n" * FLOOD_BYTES)
        read = writer.read()
        writer.write("out", b"calm\n")
        assert pieces(writer.files.read_since(read.cursor)) == [("out", b"calm\n")]


class TestTornMarks:
    def test_a_mark_that_is_being_written_is_read_the_next_time(self, writer: Writer) -> None:
        writer.write("out", b"one\n")
        mark = encode_frame(run_pb2.Mark(stdout_bytes=4, display={"content_json": "{}"}).SerializeToString())
        writer.append("marks", mark[:5])
        read = writer.read()
        assert pieces(read) == [("out", b"one\n")]
        assert read.cursor.marks_bytes == 0
        writer.append("marks", mark[5:])
        assert pieces(writer.files.read_since(read.cursor)) == [("display", b"{}")]

    @pytest.mark.parametrize("garbage", [b"\xff" * 8, b"\0\0\0\3\xff\xff\xff", b"\0\0\0\1\x0f"])
    def test_marks_that_can_not_be_read_cost_no_text(self, writer: Writer, garbage: bytes) -> None:
        writer.write("out", b"one\n")
        writer.append("marks", garbage)
        read = writer.read()
        assert pieces(read) == [("out", b"one\n")]
        writer.append("out", b"two\n")
        assert pieces(writer.files.read_since(read.cursor)) == [("out", b"two\n")]
        assert [kind for kind, *_ in writer.files.segments(run_pb2.Cursor())[0]] == ["out"]

    def test_text_that_a_mark_knows_of_is_read_with_it(self, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
        """A rank writes between our looks at the sizes of its text and of its marks."""
        writer.write("out", b"one\n")
        writer.show("{}")
        real = writer.files.size_bytes
        monkeypatch.setattr(RankFiles, "size_bytes", lambda files, kind: 0 if kind == "out" else real(kind))
        assert pieces(writer.files.read_since(run_pb2.Cursor())) == [("out", b"one\n"), ("display", b"{}")]


def test_the_tail_for_a_death_report(writer: Writer) -> None:
    writer.write("err", b"".join(b"line %d\n" % number for number in range(9999)) + b"last \xff")
    assert writer.files.tail_lines("err")[-3:] == ["line 9997", "line 9998", "last �"]
    assert writer.files.tail_lines("out") == []


def test_outputs_are_found_by_number(tmp_path: Path) -> None:
    for name in ("10", "9", "x", "1"):
        (tmp_path / name).mkdir()
    assert [stored_outputs(tmp_path / "none"), stored_outputs(tmp_path)] == [[], [1, 9, 10]]


def test_who_wants_it_whole_gets_floods_in_parts_that_memory_can_hold(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PART_BYTES", 2_500)
    line = b"x" * 99 + b"\n"
    for number in range(3):
        writer.write("out", line * 100)
        writer.write("err", line * number)
        writer.show(str(number))
    for _ in range(300):  # more marks than are read at a time
        writer.write("out", b"o\n")
        writer.write("err", b"e\n")
    whole, cursor, has_more = pb.RankOutput(), run_pb2.Cursor(), True
    while has_more:
        part, has_more = writer.files.read_part(cursor)
        assert part is not None
        assert sum(len(item.stdout) + len(item.stderr) for item in part.items) <= 2_500
        whole.items.extend(part.items)
        cursor = part.cursor
    expected: list[Piece] = []
    for number in range(3):
        expected += [("out", line * 100), ("err", line * number), ("display", str(number).encode())]
    del expected[1]  # nothing was written
    assert pieces(whole) == expected + [("out", b"o\n"), ("err", b"e\n")] * 300
    assert writer.files.read_part(cursor) == (None, False)


def test_a_part_begins_after_what_was_dropped(writer: Writer) -> None:
    writer.write("out", b"x" * 3 * PART_BYTES)
    with writer.files.path("out").open("r+b") as file:
        file.write(bytes(2 * PART_BYTES))  # as a hole reads
    writer.files.note_dropped(Dropped(out=2 * PART_BYTES))
    part, has_more = writer.files.read_part(run_pb2.Cursor())
    assert has_more is False
    [(kind, text)] = pieces(part)
    assert kind == "out"
    assert text.endswith(b"\n" + b"x" * PART_BYTES)
