"""A process beside the allocator that answers requests, one after the other: it may take long, and it can be killed."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable

from monarch_nb.config import python_environment

LENGTH = struct.Struct("<Q")
"""Requests and answers have their lengths before them. The end of its stdin is the end of the process."""
_PR_SET_PDEATHSIG = 1


class Helper:
    """Is started when it is needed, and ends when it is idle.

    Args:
        module: what the process runs; it is given the pid of this process.
    """

    def __init__(self, module: str, idle_s: float) -> None:
        self._module, self._idle_s = module, idle_s
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._idle_timer: asyncio.TimerHandle | None = None

    async def ask(self, request: bytes, timeout_s: float) -> bytes:
        """Return its answer. Who is cancelled, or waits too long, ends the process.

        Raises:
            TimeoutError: it takes longer.
            OSError, IncompleteReadError: it has ended.
        """
        async with self._turn, asyncio.timeout(timeout_s):
            return await self._ask(request)

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
        self._idle_timer = asyncio.get_running_loop().call_later(self._idle_s, self._leave)
        return answer

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", self._module, str(os.getpid())),
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


def serve(answer: Callable[[bytes], bytes]) -> None:
    """In the process: answer until the allocator has gone, whose pid is the program's argument."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):  # it has gone already
        return
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while header := requests.read(LENGTH.size):
        answered = answer(requests.read(LENGTH.unpack(header)[0]))
        answers.write(LENGTH.pack(len(answered)) + answered)
        answers.flush()
