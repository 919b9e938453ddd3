"""Searching logs, in a process that can be killed (monarch_nb.allocator.logs.search_worker)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from array import array
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from monarch_nb.allocator.logs.search_worker import LENGTH
from monarch_nb.allocator.supervision.pythons import python_environment
from monarch_nb.errors import MonarchNbError, UsageError

SEARCH_S = 30.0
"""How long a search may take: a gigabyte takes about five seconds."""
_IDLE_S = 30.0


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
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._idle_timer: asyncio.TimerHandle | None = None

    async def search(self, text: str, lines: Sequence[Lines], *, regex: bool, ignore_case: bool) -> list[array[int]]:
        """Return the numbers of the lines that match, for each of `lines`.

        Raises:
            UsageError: it is no regular expression.
            MonarchNbError: it takes too long, or too much memory.
        """
        asked = {"text": text, "regex": regex, "ignore_case": ignore_case, "lines": [astuple(each) for each in lines]}
        async with self._turn:
            try:
                async with asyncio.timeout(SEARCH_S):
                    answer = await self._ask(json.dumps(asked).encode())
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

    async def _ask(self, request: bytes) -> bytes:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        process = self._process or await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = None  # unless it answers to the end, it is of no use any more
        try:
            process.stdin.write(LENGTH.pack(len(request)) + request)
            await process.stdin.drain()
            (size,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
            answer = await process.stdout.readexactly(size)
        except BaseException:
            await asyncio.shield(_end(process))
            raise
        self._process = process
        self._idle_timer = asyncio.get_running_loop().call_later(_IDLE_S, self._leave)
        return answer

    @staticmethod
    async def _start() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "monarch_nb.allocator.logs.search_worker", str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=python_environment(),
        )

    def _leave(self) -> None:
        """Let the idle process end."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process = None

    async def close(self) -> None:
        """End."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._process is not None:
            await _end(self._process)
            self._process = None


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
