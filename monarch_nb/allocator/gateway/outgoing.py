"""What rooms ask of other nodes, carried by their gateway: it has the certificate, and says for whom it asks.

The owner of a room can make it say anything. So the gateway passes on a few methods only, to nodes that a reservation
of this very account has, in the name of its owner. The other node gives that what the owner may have there, and hands
it to the owner's room.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from monarch_nb.config import cadence, gap

from monarch_nb.rpc.channel import OpenChannel, make_server  # isort: skip  (sets gRPC's environment before grpc is imported)
import grpc

from monarch_nb.allocator.gateway.frames import OFFERED
from monarch_nb.allocator.gateway.pipe import Pipe
from monarch_nb.errors import AccessDenied, MonarchNbError
from monarch_nb.rpc.callers import acting_for, named_in
from monarch_nb.rpc.renewed_channel import RenewedChannel
from monarch_nb.rpc.status import refuse

_log = logging.getLogger(__name__)

METHODS = frozenset({"Mail", "PutBlob", "SyncTree", "PutChunks", "FindStore", "MoveStore", "Session"})
"""What a room may ask of another node. The rest the gateway asks by itself."""
_TOWARD = "monarch-nb-toward-bin"
"""In the metadata of a room's call: the address of the node that it is for."""
AGAIN_S = cadence(1.0)
PATIENCE_S = gap(2.0)
"""So long another node may be away before mail for it is given up."""
MOST_CONNECTIONS = 256
"""Of one room: each node that it talks to needs one."""


class Toward:
    """A channel of a room, as the stubs use it: what is asked on it is for one other node."""

    def __init__(self, channel: grpc.aio.Channel, address: str) -> None:
        self._channel, self._metadata = channel, ((_TOWARD, address.encode()),)
        self.unary_unary = self._naming(channel.unary_unary)
        self.unary_stream = self._naming(channel.unary_stream)
        self.stream_unary = self._naming(channel.stream_unary)
        self.stream_stream = self._naming(channel.stream_stream)
        self.channel_ready, self.close = channel.channel_ready, channel.close

    def _naming(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*of_method: Any, **options: Any) -> Any:
            method = make(*of_method, **options)

            def call(*request: Any, metadata: Any = (), **options: Any) -> Any:
                return method(*request, metadata=(*metadata, *self._metadata), **options)

            return call

        return made


class Outgoing:
    """Carries what one room asks of other nodes.

    Args:
        path: of a new socket in a directory that nobody else can enter.
        connect: opens a connection to the room, on which it may ask something.
        may_reach: whether the room may talk to the node at an address in a person's name.
        open_channel: to another node. certificate: what this node shows there now.
    """

    def __init__(
        self,
        path: Path,
        connect: Callable[[], Awaitable[socket.socket]],
        may_reach: Callable[[str, str], bool],
        open_channel: OpenChannel,
        certificate: Callable[[], object],
    ) -> None:
        self._path, self._connect, self._may_reach = path, connect, may_reach
        self._open_channel, self._certificate = open_channel, certificate
        self._channels: dict[str, RenewedChannel] = {}
        self._pipe = Pipe(path, connect)
        self._server = make_server()
        self._server.add_generic_rpc_handlers((_Handlers(self._carry),))
        self._offering: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin."""
        self._server.add_insecure_port(f"unix:{self._path}")
        await self._server.start()
        self._offering = asyncio.create_task(self._offer())

    async def close(self) -> None:
        """End, with what is under way."""
        if self._offering is not None:
            self._offering.cancel()
        self._pipe.close()
        await self._server.stop(grace=None)
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    async def _offer(self) -> None:
        """Keep one connection to the room that it can use: when it does, offer the next one."""
        while True:
            if self._pipe.ends >= 2 * MOST_CONNECTIONS:
                await asyncio.sleep(AGAIN_S)
                continue
            try:
                connection = await self._connect()
                connection.send(OFFERED)
            except (MonarchNbError, OSError) as error:
                _log.info("a room can not be offered a way to other nodes: %s", error)
                await asyncio.sleep(AGAIN_S)
                continue
            try:
                if await _says_something(connection):
                    await self._pipe.carry(connection, await self._to_server())
                    continue
            except OSError as error:
                _log.warning("what a room asks of other nodes is lost: %s", error)
            except BaseException:
                connection.close()
                raise
            connection.close()
            await asyncio.sleep(AGAIN_S)

    async def _to_server(self) -> socket.socket:
        near = socket.socket(socket.AF_UNIX)
        try:
            near.setblocking(False)
            await asyncio.get_running_loop().sock_connect(near, str(self._path))
        except BaseException:
            near.close()
            raise
        return near

    async def _carry(self, method: str, requests: Any, context: Any) -> AsyncIterator[bytes]:
        told = dict(context.invocation_metadata() or ())
        address, owner = _text(told.get(_TOWARD)), named_in(told.items())
        if not owner or not self._may_reach(address, owner):
            why = f"a room talks to nodes of its account's reservations only, in their owners' names: not to {address}"
            _log.warning("%s", why)
            await refuse(context, AccessDenied(why))
        channel = self._channel(address)
        if method.endswith("/Mail"):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await channel.channel.channel_ready()
        call: Any = channel.channel.stream_stream(method)(
            requests, timeout=context.time_remaining(), metadata=acting_for(owner)
        )
        try:
            async for answer in call:
                yield answer
        except grpc.aio.AioRpcError as error:
            trailing = tuple((k, v) for k, v in error.trailing_metadata() or () if k.startswith("monarch-nb-"))
            await context.abort(error.code(), error.details() or "", trailing)
        finally:
            call.cancel()

    def _channel(self, address: str) -> RenewedChannel:
        channel = self._channels.get(address)
        if channel is None:
            channel = RenewedChannel(lambda: self._open_channel(address), self._certificate)
            self._channels[address] = channel
        return channel.renew()


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc, unused-ignore]
    """Answers the methods that rooms may ask for. On the wire all kinds of methods are streams of messages."""

    def __init__(self, carry: Callable[[str, Any, Any], AsyncIterator[bytes]]) -> None:
        self._carry = carry

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = details.method
        if method.rpartition("/")[2] not in METHODS:
            return None

        async def carried(requests: Any, context: Any) -> AsyncIterator[bytes]:
            async with contextlib.aclosing(self._carry(method, requests, context)) as answers:  # type: ignore[type-var]
                async for answer in answers:
                    yield answer

        return grpc.stream_stream_rpc_method_handler(carried)


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


async def _says_something(connection: socket.socket) -> bool:
    """Wait until something comes on a connection, and leave it there; return False when it is closed instead."""
    loop, there = asyncio.get_running_loop(), asyncio.Event()
    connection.setblocking(False)
    loop.add_reader(connection.fileno(), there.set)
    try:
        await there.wait()
        return bool(connection.recv(1, socket.MSG_PEEK))
    except OSError:
        return False
    finally:
        loop.remove_reader(connection.fileno())
