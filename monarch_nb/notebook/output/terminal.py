"""What a terminal would show: pieces of text with carriage returns and cursor codes become finished and open lines.

Progress bars rewrite their line with a carriage return; several bars move up to each other's lines. So a line is
finished at its newline, except that as many of the last lines stay open as the cursor was seen to go up.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import groupby

from monarch_nb.ground import escapes
from monarch_nb.notebook.output.html import ansi

MAX_LINE_CHARACTERS = 2_000
"""In a cell longer lines are cut; the log has them whole."""

_CONTROLS = "\r\b\x1b"
_TOKEN = re.compile(
    r"(?P<text>[^\n\r\b\x1b]+)|\x1b\[(?P<parameters>[0-?]*)[ -/]*(?P<letter>[@-~])"
    rf"|(?P<other>{escapes.ESCAPE.pattern})|(?P<control>.)",
    re.DOTALL,
)
_MAX_HELD_CHARACTERS = 4_096
_MAX_UP = 32


_GOES_UP = re.compile(r"\x1b\[[0-?]*[ -/]*A")


def goes_up(text: str) -> bool:
    """Whether text moves up to lines before it."""
    return "\x1b" in text and _GOES_UP.search(text) is not None


def whole_lines(text: str, longest: int = MAX_LINE_CHARACTERS) -> list[str] | None:
    """Return the lines of a text, as a screen finishes them; None when it leaves something behind, a colour or a line
    that goes on."""
    screen = Screen(lambda: None, longest)
    lines = screen.write(text)
    return lines if screen.is_blank else None


class CutLine(str):
    """A line of which only the beginning is kept.

    Attributes:
        digest: of the whole line, so that lines which differ only further on do not pass for equal.
    """

    __slots__ = ("digest",)
    digest: int

    @staticmethod
    def make(kept: str, characters: int, digest: int) -> CutLine:
        line = CutLine(f"{kept}… ({characters:,} characters)")
        line.digest = digest
        return line


class Screen:
    """One stream of one rank.

    Example:
        >>> screen = Screen(recall=lambda: None)
        >>> screen.write("loading\\n 10%\\r 20%")
        ['loading']
        >>> screen.open_lines()
        [' 20%']
    """

    def __init__(self, recall: Callable[[], str | None], longest: int = MAX_LINE_CHARACTERS) -> None:
        """Make an empty one.

        Args:
            recall: takes back the line finished last, to be rewritten; None when there is none to be had.
            longest: of longer lines so many characters are kept.
        """
        self._recall, self._longest = recall, longest
        self._plain = _PlainLine(longest)
        self._cells: list[_CellLine] = []  # used instead of the plain line while control codes need it
        self._row = self._column = 0
        self._height = 1  # how many of the last lines stay open
        self._quiet_lines = 0  # begun since the cursor last went up
        self._style = ansi.PLAIN
        self._held = ""  # the beginning of an escape code
        self._finished: list[str] = []

    @property
    def is_blank(self) -> bool:
        """Whether no line is open, and no code has begun or is in force."""
        return not (self._held or self._cells or self._plain.characters or self._style != ansi.PLAIN)

    @property
    def is_within_code(self) -> bool:
        """Whether an escape code has begun whose end has not come."""
        return bool(self._held)

    def split(self, recall: Callable[[], str | None]) -> Screen:
        """Return another one that looks the same."""
        other = Screen(recall, self._longest)
        if not self.is_blank:
            left_out = ("_recall", "_finished")
            vars(other).update(deepcopy({name: value for name, value in vars(self).items() if name not in left_out}))
        return other

    def write(self, text: str) -> list[str]:
        """Add a piece of any size; return the lines that it finished, colour codes and nothing else left in them."""
        if self._held or self._cells or any(code in text for code in _CONTROLS):
            return self._write_controlled(text)
        head, *lines = text.split("\n")
        self._plain.add(head)
        if not lines:
            return []
        finished = [self._plain.take()]
        self._plain.add(lines.pop())
        finished += [_PlainLine(self._longest, line).take() if len(line) > self._longest else line for line in lines]
        return finished

    def open_lines(self) -> list[str]:
        """Return the lines that are still being written, the empty ones at the end left out."""
        lines = [line.text() for line in self._cells] if self._cells else [self._plain.text()]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def flush(self) -> list[str]:
        """Finish and return the open lines: what is written next begins a new one."""
        lines = self.open_lines()
        self._plain, self._cells, self._held = _PlainLine(self._longest), [], ""
        self._row = self._column = 0
        self._height = 1
        return lines

    def _write_controlled(self, text: str) -> list[str]:
        if not self._cells:
            self._cells = [_CellLine.continuing(self._plain)]
            self._row, self._column = 0, len(self._cells[0])
            self._plain = _PlainLine(self._longest)
        text, self._held = self._held + text, ""
        if (escape := escapes.INCOMPLETE_ESCAPE.search(text)) and len(escape[0]) <= _MAX_HELD_CHARACTERS:
            text, self._held = text[: escape.start()], escape[0]
        for token in _TOKEN.finditer(text):
            kind = token.lastgroup
            if kind == "text":
                self._column = self._cells[self._row].put(self._column, token[0], self._style)
            elif kind == "letter":
                self._escape(token["parameters"], token["letter"])
            elif kind == "control":
                self._control(token[0])
        self._finish(len(self._cells) - self._height)
        if self._height == 1 and not self._cells[0] and self._style == ansi.PLAIN:
            self._cells = []  # back to the fast way
        finished, self._finished = self._finished, []
        return finished

    def _control(self, character: str) -> None:
        if character == "\n":
            self._new_line()
        elif character == "\r":
            self._column = 0
        elif character == "\b":
            self._column = max(0, self._column - 1)

    def _new_line(self) -> None:
        self._row, self._column = self._row + 1, 0
        if self._row < len(self._cells):
            return
        self._cells.append(_CellLine(self._longest))
        self._quiet_lines += 1
        if self._quiet_lines > 2 * self._height:
            self._height = 1
        if self._height == 1:
            self._finish(self._row)

    def _finish(self, count: int) -> None:
        """Finish the first `count` open lines, but none that the cursor is on or above."""
        count = max(0, min(count, self._row))
        self._finished += [line.text() for line in self._cells[:count]]
        del self._cells[:count]
        self._row -= count

    def _escape(self, parameters: str, letter: str) -> None:
        first = parameters.split(";")[0]
        count = int(first[:4]) if first.isdecimal() else 0
        if letter == "m":
            self._style = ansi.apply(self._style, parameters)
        elif letter == "A":
            self._up(max(1, count))
        elif letter == "B":
            self._row = min(self._row + max(1, count), len(self._cells) - 1)
        elif letter == "C":
            self._column = min(self._column + max(1, count), self._longest)
        elif letter == "D":
            self._column = max(0, self._column - max(1, count))
        elif letter == "G":
            self._column = min(max(0, count - 1), self._longest)
        elif letter == "K":
            self._cells[self._row].erase(self._column, count)

    def _up(self, count: int) -> None:
        self._quiet_lines = 0
        for _ in range(min(count, _MAX_UP)):
            if self._row:
                self._row -= 1
                continue
            line = self._finished.pop() if self._finished else self._recall()
            if line is None:
                break
            self._cells.insert(0, _CellLine.of(line, self._longest))
        self._height = max(self._height, min(len(self._cells) - self._row, _MAX_UP))


class _PlainLine:
    """A line without control codes, its beginning kept, all of it counted and digested."""

    __slots__ = ("_pieces", "characters", "digest", "longest")

    def __init__(self, longest: int, text: str = "") -> None:
        self.longest = longest
        self._pieces: list[str] = []  # joined when the line is asked for: it may be 50 MB that come bit by bit
        self.characters = self.digest = 0
        self.add(text)

    @property
    def kept(self) -> str:
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def add(self, text: str) -> None:
        if not text:
            return
        if self.characters <= self.longest:
            self._pieces.append(text)
        self.characters += len(text)
        if self.characters > self.longest:
            self._digest(text)

    def _digest(self, text: str) -> None:
        kept = self.kept
        before = kept if self.characters == len(kept) else text
        self.digest = zlib.crc32(before.encode(errors="surrogatepass"), self.digest)
        self._pieces = [kept[: self.longest]]

    def text(self) -> str:
        if self.characters <= self.longest:
            return self.kept
        return CutLine.make(self.kept, self.characters, self.digest)

    def take(self) -> str:
        text = self.text()
        self._pieces, self.characters, self.digest = [], 0, 0
        return text


class _CellLine:
    """A line that can be overwritten: runs of text, each with its style."""

    __slots__ = ("_beyond", "_digest", "_length", "_longest", "_runs")

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._runs: list[tuple[str, ansi.Style]] = []
        self._length = self._beyond = self._digest = 0

    @classmethod
    def continuing(cls, plain: _PlainLine) -> _CellLine:
        line = cls.of(plain.kept, plain.longest)
        line._beyond, line._digest = plain.characters - len(plain.kept), plain.digest
        return line

    @classmethod
    def of(cls, text: str, longest: int) -> _CellLine:
        """Return the line that `text`, which has no codes but colours, looks like."""
        line, column, style, position = cls(longest), 0, ansi.PLAIN, 0
        for escape in escapes.ESCAPE.finditer(text):
            column = line.put(column, text[position : escape.start()], style)
            style = ansi.apply(style, escape[1]) if escape[2] == "m" else style
            position = escape.end()
        line.put(column, text[position:], style)
        return line

    def __len__(self) -> int:
        return self._length

    def put(self, column: int, text: str, style: ansi.Style) -> int:
        """Write `text` from `column` on; return the column after it."""
        room = max(0, self._longest - column)
        if len(text) > room:
            self._beyond += len(text) - room
            self._digest = zlib.crc32(text[room:].encode(errors="surrogatepass"), self._digest)
            text = text[:room]
        if not text:
            return column
        if column > self._length:
            self._runs.append((" " * (column - self._length), ansi.PLAIN))
            self._length = column
        end = column + len(text)
        if column == self._length:
            self._runs.append((text, style))
        else:
            self._runs = [*self._slice(0, column), (text, style), *self._slice(end, self._length)]
        self._length = max(self._length, end)
        return end

    def erase(self, column: int, what: int) -> None:
        """Erase from `column` on (0), up to it (1), or all (2)."""
        if what == 1:
            self.put(0, " " * min(column + 1, self._length), ansi.PLAIN)
            return
        keep = 0 if what == 2 else min(column, self._length)
        self._runs, self._length = self._slice(0, keep), keep
        self._beyond = self._digest = 0

    def text(self) -> str:
        text = "".join(self._styled())
        if not self._beyond:
            return text
        return CutLine.make(text, self._length + self._beyond, self._digest)

    def _slice(self, begin: int, end: int) -> list[tuple[str, ansi.Style]]:
        runs, position = [], 0
        for text, style in self._runs:
            if part := text[max(0, begin - position) : max(0, end - position)]:
                runs.append((part, style))
            position += len(text)
        return runs

    def _styled(self) -> Iterator[str]:
        for style, runs in groupby(self._runs, key=lambda run: run[1]):
            text = "".join(run for run, _ in runs)
            parameters = ansi.parameters_of(style) if text else ""
            yield f"\x1b[{parameters}m{text}\x1b[0m" if parameters else text
