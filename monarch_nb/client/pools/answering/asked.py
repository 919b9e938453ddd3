"""What comes of asking all nodes at once: who is waited for, who speaks another protocol, who has answered twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from monarch_nb import config
from monarch_nb.client.connections.connection import Connection
from monarch_nb.config import cadence
from monarch_nb.errors import VersionMismatch
from monarch_nb.proto import allocator_pb2 as pb

LATE_S = cadence(1.0)
"""A node that has not answered by then is named to who waits."""


@contextlib.contextmanager
def said_for_which(
    calls: Mapping[Connection, asyncio.Future[pb.StatusReply]], say: Callable[[str], None] | None
) -> Iterator[None]:
    """Say which nodes have not answered yet, when that takes long."""

    def tell() -> None:
        if say and (late := [connection.name for connection, one in calls.items() if not one.done()]):
            say(f"waiting for {', '.join(late)}: no answer yet")

    timer = asyncio.get_running_loop().call_later(LATE_S, tell)
    try:
        yield
    finally:
        timer.cancel()


def each_once(told: Iterable[tuple[Connection, pb.StatusReply]]) -> list[tuple[Connection, pb.StatusReply]]:
    """Return what nodes said without those that are on the pool's list under another address as well."""
    first: dict[str, tuple[Connection, pb.StatusReply]] = {}
    for connection, reply in told:
        first.setdefault(reply.node.token or connection.address, (connection, reply))
    return list(first.values())


def mismatch(connection: Connection, node: pb.DescribeReply) -> VersionMismatch | None:
    """Return the error that says that a node speaks another protocol than we do; None when it speaks ours."""
    if node.protocol == config.PROTOCOL:
        return None
    return VersionMismatch(
        f"{connection.name} runs monarch_nb {node.version} (protocol {node.protocol}), this is {config.VERSION} "
        f"(protocol {config.PROTOCOL}): install the same version on both and restart the older one",
        client=config.VERSION,
        node=node.version,
    )
