"""A client that is killed at a given moment of what it does, counted in calls to nodes and never in seconds."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from integration.live import TIMEOUT_S, client

KILLS_ITSELF = """
import asyncio, itertools, signal
from monarch_nb.client.connections.connection import Connection

ASKS = {{"Status", "Describe", "Workspace", "Revoke", "SeeToken"}}
one_at_a_time, calls = asyncio.Lock(), itertools.count(1)

def killing(whole):
    async def call(self, method, *arguments, **options):
        if method in ASKS:
            return await whole(self, method, *arguments, **options)
        async with one_at_a_time:
            is_last = next(calls) == {moment}
            answer = asyncio.ensure_future(whole(self, method, *arguments, **options))
            if not (is_last and {in_flight}):
                answer = await answer
            else:
                for _ in range(20): await asyncio.sleep(0)
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer
    return call

Connection.unary, Connection.send_stream = killing(Connection.unary), killing(Connection.send_stream)
"""
"""One call to a node after the other, until one was answered, or sent: no later one ever reaches a node."""


def killed_at(moment: int, program: str, *, in_flight: bool) -> bool:
    """Have a client killed at a moment, counted from 1; return whether it came so far.

    Args:
        in_flight: before the call is answered.
    """
    hook = KILLS_ITSELF.format(moment=moment, in_flight=in_flight)
    with client(f"{hook}\n{program}\nprint('whole')") as doomed:
        doomed.process.wait(TIMEOUT_S)
        assert doomed.process.returncode in (0, -signal.SIGKILL), doomed.errors()
        return doomed.process.returncode != 0


def moments(program: str, *, in_flight: bool = False) -> Iterator[int]:
    """Have clients killed at one moment after the other, until one does all that it wants; yield after each.

    Args:
        in_flight: kill each before its last call is answered, else after.
    """
    for moment in range(1, 100):
        was_killed = killed_at(moment, program, in_flight=in_flight)
        yield moment
        if not was_killed:
            return
    raise AssertionError("it does not come to its end")
