"""How other nodes are reached from here: their allocators, and their interface for collectives, on which Gloo and NCCL
take any port. A firewall that lets only the allocators' port pass is the likely reason for an `init_process_group` that
hangs; it is noticed here in seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Iterable

from monarch_nb.config import gap, patience
from monarch_nb.ground.tasks import Tasks

from monarch_nb.rpc.channel import OpenChannel  # isort: skip  (sets gRPC's environment before grpc is imported)
import grpc

from monarch_nb.errors import CapacityError, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from monarch_nb.proto.allocator_pb2_grpc import AllocatorStub
from monarch_nb.rpc.status import translate

LISTEN_S = patience(10.0)
"""So long a probe has time to come, and to end."""
ANSWER_S = patience(10.0)
"""So long another allocator may take to answer: a fresh connection with TLS takes a busy machine seconds."""
CONNECT_S = gap(3.0)
"""So long the kernel may take to connect: a firewall that swallows everything is told soon."""
MOST_BYTES = 256 << 20
MOST_PEERS = 64
MOST_LISTENING = 64
_TOKEN_BYTES = 16
_PIECE = bytes(1 << 20)


class Reach:
    """Probes other nodes, and is probed by them.

    Args:
        host: address of the interface on which collectives listen.
        open_channel: to another node.
    """

    def __init__(self, host: str, open_channel: OpenChannel) -> None:
        self._host, self._open_channel = host, open_channel
        self._listening = Tasks()

    async def listen(self) -> pb.ListenReply:
        """Take one connection on the interface of collectives, for a few seconds.

        Raises:
            CapacityError: too many probe at once.
        """
        if len(self._listening) >= MOST_LISTENING:
            raise CapacityError("too many nodes probe this one at once: try again in a few seconds")
        token = secrets.token_bytes(_TOKEN_BYTES)
        answered = asyncio.Event()

        async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(LISTEN_S):
                    if await reader.readexactly(_TOKEN_BYTES) == token:
                        while await reader.read(len(_PIECE)):
                            pass
                        writer.write(token)
                        await writer.drain()
                        answered.set()
            writer.close()

        server = await asyncio.start_server(swallow, self._host, 0)
        self._listening.start(_close_later(server, answered))
        return pb.ListenReply(host=self._host, port=server.sockets[0].getsockname()[1], token=token)

    async def probe(self, peers: Iterable[files_pb2.Peer], size_bytes: int) -> list[pb.PeerProbe]:
        """Connect to other nodes, one after the other: what one takes is not taken from another.

        Args:
            size_bytes: sent to each.

        Raises:
            UsageError: too much is asked for.
        """
        asked = list(peers)
        if len(asked) > MOST_PEERS or size_bytes > MOST_BYTES:
            raise UsageError(f"at most {MOST_PEERS} nodes are probed at once, with {MOST_BYTES >> 20} MB each")
        return [await self._probe(peer, size_bytes) for peer in asked]

    async def _probe(self, peer: files_pb2.Peer, size_bytes: int) -> pb.PeerProbe:
        channel = self._open_channel(peer.address)
        try:
            stub = AllocatorStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
            there: pb.ListenReply = await stub.Listen(pb.ListenRequest(), timeout=ANSWER_S)
        except grpc.aio.AioRpcError as error:
            return pb.PeerProbe(unreachable=str(translate(error, peer.node_id)))
        finally:
            await channel.close()
        try:
            bytes_per_s = await _send(there, size_bytes)
        except TimeoutError:
            return pb.PeerProbe(host=there.host, refused=f"port {there.port}: no answer in {CONNECT_S:g} s")
        except (OSError, asyncio.IncompleteReadError) as error:
            return pb.PeerProbe(host=there.host, refused=f"port {there.port}: {error}")
        return pb.PeerProbe(host=there.host, bytes_per_s=bytes_per_s)


async def _close_later(server: asyncio.Server, answered: asyncio.Event) -> None:
    async with server:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(answered.wait(), LISTEN_S)


async def _send(there: pb.ListenReply, size_bytes: int) -> float:
    """Send so many bytes; return how many a second, 0.0 when none were to be sent."""
    async with asyncio.timeout(CONNECT_S):
        reader, writer = await asyncio.open_connection(there.host, there.port)
    try:
        async with asyncio.timeout(LISTEN_S):
            began_s = time.monotonic()
            writer.write(there.token)
            for start in range(0, size_bytes, len(_PIECE)):
                writer.write(_PIECE[: size_bytes - start])
                await writer.drain()
            writer.write_eof()
            await reader.readexactly(_TOKEN_BYTES)
            took_s = time.monotonic() - began_s
    finally:
        writer.close()
    return size_bytes / took_s if size_bytes else 0.0
