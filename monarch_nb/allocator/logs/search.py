"""Searching logs, in a process that can be killed: `python -m monarch_nb.allocator.logs.search PID`, on behalf of the
allocator PID. A regular expression may take for ever, and nothing but the end of its process stops it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import BinaryIO

from monarch_nb.allocator.logs.helper import Helper, serve
from monarch_nb.config import gap, patience
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.ground.escapes import strip

SEARCH_S = patience(30.0)
"""How long a search may take: a gigabyte takes about five seconds."""


@dataclass(frozen=True)
class Lines:
    """Some lines of a file: from one offset to another; `number` is the first one's."""

    path: str
    start: int
    end: int
    number: int


class Searcher(Helper):
    """Searches, one after the other. The process is started when it is needed and ends when it is idle."""

    def __init__(self) -> None:
        super().__init__("monarch_nb.allocator.logs.search", gap(30.0))

    async def search(self, text: str, lines: Sequence[Lines], *, regex: bool, ignore_case: bool) -> list[array[int]]:
        """Return the numbers of the lines that match, for each of `lines`.

        Raises:
            UsageError: it is no regular expression.
            MonarchNbError: it takes too long, or too much memory.
        """
        asked = {"text": text, "regex": regex, "ignore_case": ignore_case, "lines": [astuple(each) for each in lines]}
        try:
            answer = await self.ask(json.dumps(asked).encode(), SEARCH_S)
        except TimeoutError as error:
            raise MonarchNbError(
                f"the search for {text!r} took longer than {SEARCH_S:g} s and was stopped: search in fewer runs"
                + (", or with a simpler regular expression" if regex else "")
            ) from error
        except (OSError, asyncio.IncompleteReadError) as error:
            raise MonarchNbError(f"the search for {text!r} failed: its process ended ({error})") from error
        if answer[:1] == b"!":
            raise UsageError(f"{text!r} is no regular expression: {answer[1:].decode()}")
        numbers = array("Q", answer[1:])
        counts, position = numbers[: len(lines)], len(lines)
        found = []
        for count in counts:
            found.append(numbers[position : position + count])
            position += count
        return found


_STEP_BYTES = 1 << 20
_LONGEST_LINE_BYTES = 16 << 20
"""A longer line is searched in pieces, each as if it were a line."""


def matcher(text: str, *, regex: bool, ignore_case: bool) -> Callable[[str], object]:
    """Return what says whether a line matches, or raise re.error."""
    if regex:
        return re.compile(text, re.IGNORECASE if ignore_case else 0).search
    if ignore_case:
        lowered = text.lower()
        return lambda line: lowered in line.lower()
    return lambda line: text in line


def matching(file: BinaryIO, start: int, end: int, number: int, matches: Callable[[str], object]) -> array[int]:
    """Return the numbers of the lines between two offsets that match; the first one has the given number."""
    found = array("Q")
    for lines, is_piece in _lines(file, start, end):
        hits = [number + offset for offset, line in enumerate(lines) if matches(line)]
        if hits and found and found[-1] == hits[0]:
            del hits[0]  # the line before was a piece of it
        found.extend(hits)
        number += len(lines) - is_piece
    return found


def _lines(file: BinaryIO, start: int, end: int) -> Iterator[tuple[list[str], bool]]:
    """Yield lines as people see them, some at a time, and whether they are one that goes on."""
    file.seek(start)
    pending = b""
    while start < end and (data := file.read(min(_STEP_BYTES, end - start))):
        start += len(data)
        whole, newline, rest = data.rpartition(b"\n")
        if newline:
            yield _text(pending + whole), False
            pending = rest
        elif len(pending) + len(data) > _LONGEST_LINE_BYTES:
            yield _text(pending + data), True
            pending = b""
        else:
            pending += data
    if pending:
        yield _text(pending), False


def _text(data: bytes) -> list[str]:
    lines = data.decode(errors="backslashreplace").split("\n")
    return [strip(line) if "\x1b" in line else line for line in lines] if b"\x1b" in data else lines


def answer(request: bytes) -> bytes:
    """Return how many lines match in each part, and all their numbers; or why that can not be said."""
    asked = json.loads(request)
    try:
        matches = matcher(asked["text"], regex=asked["regex"], ignore_case=asked["ignore_case"])
    except (re.error, OverflowError, RecursionError) as error:
        return b"!" + str(error).encode(errors="backslashreplace")
    counts, numbers = array("Q"), array("Q")
    for path, start, end, number in asked["lines"]:
        found = array("Q")
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            found = matching(file, start, end, number, matches)
        counts.append(len(found))
        numbers.extend(found)
    return b"=" + counts.tobytes() + numbers.tobytes()


def main() -> None:
    """Answer until the allocator has gone."""
    serve(answer)


if __name__ == "__main__":
    main()
