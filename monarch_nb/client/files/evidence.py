"""Who shares a directory with whom: found by evidence, a token file that one writes and others see.

A path says nothing: `/data` may be another disk on every node.

Coroutines run on the background loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from monarch_nb.client.connections.connection import Connection
from monarch_nb.config import patience
from monarch_nb.errors import MonarchNbError, SharedStorageError
from monarch_nb.proto import files_pb2

Request = files_pb2.SeeTokenRequest
TOKEN_TIMEOUT_S = patience(10.0)
"""Storage that does not answer for so long is of no use."""


@dataclass(frozen=True)
class Token:
    """A token file that exists. Its name is new: nobody has ever looked for it, so that no cache of a network file
    system says that it is not there."""

    name: str
    text: str
    from_client: bool = False

    def is_here(self, directory: str) -> bool:
        """Return whether this process sees it."""
        return os.path.lexists(os.path.join(directory, self.name))

    async def why_unseen(self, connections: Sequence[Connection], directories: Sequence[str]) -> list[str]:
        """Return why each node does not see the token in its directory; an empty text from those that do.

        Raises:
            NodeUnreachable: a node does not answer.
        """
        calls = (
            self.ask(node, directory, Request.ACTION_SEE)
            for node, directory in zip(connections, directories, strict=True)
        )
        return list(await asyncio.gather(*calls))

    async def ask(self, node: Connection, directory: str, action: Request.Action.ValueType) -> str:
        """Have a node do something with the token in a directory; return why it could not, or an empty text."""
        path = os.path.join(directory, self.name)
        request = Request(path=path, token=self.text, action=action, from_client=self.from_client)
        why_not: str = (await node.unary("SeeToken", request, TOKEN_TIMEOUT_S)).why_not
        return why_not


def _new_token(*, from_client: bool = False) -> Token:
    return Token(f".monarch-nb-{secrets.token_hex(8)}", secrets.token_hex(16), from_client)


@contextlib.asynccontextmanager
async def token_of_node(node: Connection, directory: str) -> AsyncIterator[Token]:
    """A token that a node writes, and removes at the end.

    Raises:
        OSError: it can not write there.
    """
    token = _new_token()
    try:
        if why_not := await token.ask(node, directory, Request.ACTION_WRITE):
            raise OSError(why_not)
        yield token
    finally:
        with contextlib.suppress(MonarchNbError):
            await asyncio.shield(token.ask(node, directory, Request.ACTION_REMOVE))


@contextlib.contextmanager
def token_of_client(directory: str) -> Iterator[Token]:
    """A token that this process writes, and removes at the end.

    Raises:
        OSError: it can not write there.
    """
    token = _new_token(from_client=True)
    path = os.path.join(directory, token.name)
    with open(path, "x") as file:
        file.write(token.text)
    try:
        yield token
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


async def nodes_seeing(connections: Sequence[Connection], directory: str) -> list[bool]:
    """Return which nodes see a directory of this computer.

    Raises:
        NodeUnreachable: a node does not answer.
    """
    try:
        with token_of_client(directory) as token:
            answers = await token.why_unseen(connections, [directory] * len(connections))
    except OSError:  # a directory that can not be written to can not prove anything
        return [False] * len(connections)
    return [not why_not for why_not in answers]


async def nodes_blind_to(connections: Sequence[Connection], directory: str) -> list[str]:
    """Return the names of the nodes that are proven not to see a directory of this computer. One that this process
    may not write to proves nothing.

    Raises:
        NodeUnreachable: a node does not answer.
    """
    if not os.access(directory, os.W_OK):
        return []
    seen = await nodes_seeing(connections, directory)
    return [node.name for node, sees in zip(connections, seen, strict=True) if not sees]


async def check_shared(connections: Sequence[Connection], directory: str) -> None:
    """Make sure that a directory is the same storage on all nodes.

    Raises:
        SharedStorageError: it is not; the message names the nodes.
        NodeUnreachable: a node does not answer.
    """
    first, *others = connections
    try:
        async with token_of_node(first, directory) as token:
            answers = await token.why_unseen(others, [directory] * len(others))
    except OSError as error:
        raise SharedStorageError(
            f"--shared {directory}: {first.name} can not write there ({error}); name a directory on storage that every "
            "node has mounted",
            [first.name],
        ) from error
    blind = {node.name: why_not for node, why_not in zip(others, answers, strict=True) if why_not}
    if blind:
        raise SharedStorageError(
            f"--shared {directory} is not the same storage on all nodes: a file that {first.name} writes there is "
            f"not seen by {', '.join(f'{name} ({why_not})' for name, why_not in blind.items())}",
            list(blind),
        )
