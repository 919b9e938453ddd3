"""Pieces of text become the lines that a terminal would show."""

import io
import sys

from hypothesis import given, settings
from hypothesis import strategies as st
from tqdm import tqdm

from monarch_nb.notebook.output.terminal import MAX_LINE_CHARACTERS, CutLine, Screen, _PlainLine


class _Log:
    """A screen whose finished lines can be taken back."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.screen = Screen(lambda: self.lines.pop() if self.lines else None)

    def write(self, text: str) -> None:
        self.lines += self.screen.write(text)

    def everything(self) -> list[str]:
        return [*self.lines, *self.screen.open_lines()]


def _show(*pieces: str) -> list[str]:
    log = _Log()
    for piece in pieces:
        log.write(piece)
    return log.everything()


def test_lines() -> None:
    for text, lines in (
        ("a\nb\n", ["a", "b"]),
        ("a\n\nb", ["a", "", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("10%\r20%\r30%", ["30%"]),
        ("a long line\rshort", ["shortg line"]),
        ("a long line\r\x1b[Kshort", ["short"]),
        ("abc\b\bX", ["aXc"]),
        ("one\ntwo\x1b[A\rONE", ["ONE", "two"]),
        ("one\ntwo\nthree\x1b[2A\rONE\x1b[B\rTWO", ["ONE", "TWO", "three"]),
        ("ab\x1b[5Cx", ["ab     x"]),
        ("abc\x1b[2Gx", ["axc"]),
        ("\x1b[31mred\nstill\x1b[0m not", ["\x1b[31mred\x1b[0m", "\x1b[31mstill\x1b[0m not"]),
        ("\x1b]0;title\x07text\n", ["text"]),
        ("\x1b[?25lhidden cursor\x1b[?25h\n", ["hidden cursor"]),
        ("\x1b[9999Aabc", ["abc"]),
    ):
        assert _show(text) == lines
        assert _show(*text) == lines


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["a", "bc", "\n", "\r", "\b", "\x1b[31m", "\x1b[0m", "\x1b[K", "é"]), max_size=30),
    st.data(),
)
def test_pieces_do_not_matter(tokens: list[str], data: st.DataObject) -> None:
    text = "".join(tokens)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert _show(*pieces) == _show(text)


def test_a_plain_line_that_is_very_long_is_cut_and_counted() -> None:
    whole = "x" * 10_485_760
    (line,) = _show(whole + "\n")
    assert line == "x" * MAX_LINE_CHARACTERS + "… (10,485,760 characters)"
    pieces = [whole[start : start + 65_536] for start in range(0, len(whole), 65_536)]
    (in_pieces,) = _show(*pieces, "\n")
    assert isinstance(line, CutLine)
    assert isinstance(in_pieces, CutLine)
    assert (in_pieces, in_pieces.digest) == (line, line.digest)


def test_a_line_without_end_is_not_copied_for_each_of_its_pieces() -> None:
    copied = []

    class Piece(str):
        def __radd__(self, before: str) -> str:
            copied.append(len(before))
            return str(before) + str(self)

    line = _PlainLine(sys.maxsize)
    for _ in range(100):
        line.add(Piece("x" * 10))
    assert line.text() == "x" * 1000
    line.add(Piece("end"))
    assert line.take() == "x" * 1000 + "end"
    assert (line.text(), copied) == ("", [])


def test_long_lines_that_differ_at_the_end_have_other_digests() -> None:
    first, second = _show("x" * 5000 + "1\n" + "x" * 5000 + "2\n")
    assert first == second
    assert first.digest != second.digest  # type: ignore[attr-defined]


def test_a_long_line_with_control_codes() -> None:
    assert _show("x" * 5000, "\x1b[31m", "y" * 10, "\n")[0].endswith("x… (5,010 characters)")
    assert _show("x" * 5000 + "\r" + "y" * 3 + "\x1b[K") == ["yyy"]


def test_several_tqdm_bars() -> None:
    for whole in (True, False):
        written = io.StringIO()
        bars = [
            tqdm(total=3, file=written, position=place, desc=f"bar{place}", ncols=40, mininterval=0)
            for place in range(3)
        ]
        for _ in range(3):
            for bar in bars:
                bar.update()
                bar.refresh()
        assert [line[:10] for line in _show(written.getvalue())] == ["bar0: 100%", "bar1: 100%", "bar2: 100%"]
        for bar in reversed(bars):
            bar.close()  # at the top line, before the others
        written.write("after\n" * 10)
        text = written.getvalue()
        lines = _show(text) if whole else _show(*text)
        assert [line[:10] for line in lines if line.startswith("bar")] == ["bar2: 100%", "bar1: 100%", "bar0: 100%"]
        assert lines.count("after") == 10


def test_after_the_bars_lines_are_finished_at_once_again() -> None:
    log = _Log()
    log.write("bar1\n\rbar2\x1b[A\rBAR1\n\n")
    for count in range(10):
        log.write(f"line {count}\n")
    assert log.lines == ["BAR1", "bar2", *(f"line {count}" for count in range(10))]
