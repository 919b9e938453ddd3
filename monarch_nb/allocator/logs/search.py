"""Searching logs, in a process that can be killed (monarch_nb.allocator.logs.search_worker)."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from monarch_nb.allocator.logs.helper import Helper
from monarch_nb.config import gap, patience
from monarch_nb.errors import MonarchNbError, UsageError

SEARCH_S = patience(30.0)
"""How long a search may take: a gigabyte takes about five seconds."""


@dataclass(frozen=True)
class Lines:
    """Some lines of a file: from one offset to another; `number` is the first one's."""

    path: str
    start: int
    end: int
    number: int


class Searcher:
    """Searches, one after the other. The process is started when it is needed and ends when it is idle."""

    def __init__(self) -> None:
        self._helper = Helper("monarch_nb.allocator.logs.search_worker", gap(30.0))

    async def search(self, text: str, lines: Sequence[Lines], *, regex: bool, ignore_case: bool) -> list[array[int]]:
        """Return the numbers of the lines that match, for each of `lines`.

        Raises:
            UsageError: it is no regular expression.
            MonarchNbError: it takes too long, or too much memory.
        """
        asked = {"text": text, "regex": regex, "ignore_case": ignore_case, "lines": [astuple(each) for each in lines]}
        try:
            answer = await self._helper.ask(json.dumps(asked).encode(), SEARCH_S)
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

    async def close(self) -> None:
        """End."""
        await self._helper.close()
