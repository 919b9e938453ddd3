"""On which line of a TOML file something is said: TOML's reader does not tell. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

_HEADER = re.compile(r"\s*\[([^\]]+)\]")
_KEY = re.compile(r"""\s*("[^"]*"|'[^']*'|[\w-]+(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[\w*-]+))*)\s*=""")
_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w*-]+))\s*\.?""")


def parse_toml(text: str) -> dict[str, Any]:
    """Return what a text says.

    Raises:
        ValueError: it is no TOML: "line 3: ...".
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        told = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", str(error))
        line = told[2] if told and told[2] else str(text.count("\n") + 1)
        raise ValueError(f"line {line}: {told[1] if told else error}") from None


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """Return the first line of each key of a text that can be read, by the names that lead to it. A line
    within a text of several lines may be taken for a key."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _path(header[1])
            path = table
        elif key := _KEY.match(line):
            path = (*table, *_path(key[1]))
        else:
            continue
        for end in range(1, len(path) + 1):
            found.setdefault(path[:end], number)
    return found


class Problems:
    """What is wrong in a text, and on which lines.

    Example:
        >>> problems = Problems("rooms = 1\\nallow = 3")
        >>> problems.add(("allow",), "allow is a list")
        >>> problems.told()
        ['line 2: allow is a list']
    """

    def __init__(self, text: str) -> None:
        self._lines = lines_of(text)
        self._found: list[tuple[int, str]] = []

    def add(self, path: tuple[str, ...], problem: str) -> None:
        """Note what is wrong with a key, by the names that lead to it."""
        self._found.append((line_of(self._lines, path), problem))

    def told(self) -> list[str]:
        """Return all, in the order of the lines."""
        return [f"line {line}: {problem}" for line, problem in sorted(self._found)]


def line_of(lines: Mapping[tuple[str, ...], int], path: tuple[str, ...]) -> int:
    """Return the line of a key, or of the nearest thing that it is in."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), 1)


def _path(text: str) -> tuple[str, ...]:
    return tuple(next(filter(None, part.groups()), "") for part in _PART.finditer(text))
