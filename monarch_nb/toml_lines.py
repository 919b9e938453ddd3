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


def line_of(lines: Mapping[tuple[str, ...], int], path: tuple[str, ...]) -> int:
    """Return the line of a key, or of the nearest thing that it is in."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), 1)


def _path(text: str) -> tuple[str, ...]:
    return tuple(next(filter(None, part.groups()), "") for part in _PART.finditer(text))
