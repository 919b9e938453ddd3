"""Calls to many nodes at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from monarch_nb.client.connections.connection import Connection
from monarch_nb.config import patience
from monarch_nb.errors import NodeUnreachable, ReservationNotFound
from monarch_nb.ground.rank_sets import listed

STRAGGLER_S = patience(5.0)
"""So much later than another node one may answer. It is long: on a busy machine nodes are slow, and not away."""

T = TypeVar("T")


async def answers(calls: Mapping[Connection, Awaitable[T]]) -> dict[Connection, T | BaseException]:
    """Wait for what nodes answer, or why they do not. One that is silent long after another has answered is not waited
    for any more: who asks wants to see the others."""
    asked = {connection: asyncio.ensure_future(call) for connection, call in calls.items()}
    pending, news = set(asked.values()), asyncio.Event()
    patience_s: float | None = None

    def on_done(one: asyncio.Future[T]) -> None:
        nonlocal patience_s
        pending.discard(one)
        if not one.cancelled() and one.exception() is None:
            patience_s = STRAGGLER_S
        news.set()

    for one in asked.values():
        one.add_done_callback(on_done)
    try:
        with contextlib.suppress(TimeoutError):
            while pending:
                news.clear()
                async with asyncio.timeout(patience_s):
                    await news.wait()
    finally:
        for one in asked.values():
            one.cancel()
    silent = f"does not answer, although others did {STRAGGLER_S:g} s ago"
    return {
        connection: NodeUnreachable(f"{connection.name} {silent}", connection.name)
        if one in pending
        else one.exception() or one.result()
        for connection, one in asked.items()
    }


async def all_or_none(method: str, requests: Mapping[Connection, tuple[Sequence[Any], Sequence[Any]]]) -> None:
    """Have nodes change something that must be so on all of them. When one fails, or Ctrl-C comes meanwhile, all take
    it back, and the error is raised.

    Args:
        requests: to each node, one after the other: what changes it, and what takes that back.

    Raises:
        NodeUnreachable: one did not answer when it should have taken it back: nobody knows what is so there.
    """
    try:
        failed = await _failures(method, {connection: new for connection, (new, _) in requests.items()})
    except asyncio.CancelledError:
        await _take_back(method, requests)
        raise
    if failed:
        error = next(iter(failed.values()))
        taken_back = await _take_back(method, requests)
        # What was released meanwhile is so on no node: nothing has to be taken back there.
        if unsure := [node for node, why in taken_back.items() if not isinstance(why, ReservationNotFound)]:
            names, one = listed([node.name for node in unsure]), unsure[0]
            way_on = f"it was taken back, which {names} did not confirm: say it again when all nodes answer"
            raise NodeUnreachable(f"{error}; {way_on}", one.name) from error
        raise error


async def _take_back(
    method: str, requests: Mapping[Connection, tuple[Sequence[Any], Sequence[Any]]]
) -> dict[Connection, BaseException]:
    """A second Ctrl-C does not wait for it, but does not end it either."""
    return await asyncio.shield(_failures(method, {node: old for node, (_, old) in requests.items()}))


async def _failures(method: str, requests: Mapping[Connection, Sequence[Any]]) -> dict[Connection, BaseException]:
    async def tell(connection: Connection, told: Sequence[Any]) -> None:
        for request in told:
            await connection.unary(method, request)

    ended = await asyncio.gather(*(tell(*each) for each in requests.items()), return_exceptions=True)
    return {node: one for node, one in zip(requests, ended, strict=True) if one is not None}
