"""The streams of mail to other nodes. Each carries letters in their order, the content of large ones before them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from monarch_nb.config import gap

from monarch_nb.rpc.channel import OpenChannel, is_local  # isort: skip  (sets gRPC's environment before grpc is imported)
import grpc

from monarch_nb import config
from monarch_nb.allocator.mail.letters import Blob, Letter
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto.mail_pb2 import Envelope
from monarch_nb.rpc.callers import acting_for
from monarch_nb.rpc.renewed_channel import RenewedChannel
from monarch_nb.rpc.status import translate

_log = logging.getLogger(__name__)

PATIENCE_S = gap(5.0)
"""So long a node may be away before letters for it are given up: its allocator is being started again, or its machine
is busy, and a fresh connection with TLS takes seconds."""
BATCH_BYTES = 1 << 20
BROKEN = "its allocator ended, or the network to it broke, while the call waited"
_AWAY = "it does not answer; its ranks are as they were"
_UP = ": monarch-nb up starts its allocator again"


class Peers:
    """The other nodes that letters go to.

    Args:
        open_channel: to another node.
        certificate: what this node shows there now: when it is another, the next stream is on a channel of its own.
        on_lost: called with (node, why) when letters to it may be lost.
        on_returned: called with an envelope whose content the other node can not store, and why.
    """

    def __init__(
        self,
        open_channel: OpenChannel,
        certificate: Callable[[], object],
        on_lost: Callable[[str, str], None],
        on_returned: Callable[[Envelope, Exception], None],
    ) -> None:
        self.open_channel, self.certificate = open_channel, certificate
        self.on_lost, self.on_returned = on_lost, on_returned
        self._peers: dict[tuple[str, str], Peer] = {}

    def send(self, node: str, owner: str, letter: Letter) -> None:
        """Send a letter, after those before it.

        Args:
            owner: of the reservation that it is about: it goes in their name. "" when that is not known.
        """
        if (node, owner) not in self._peers:
            self._peers[node, owner] = Peer(self, node, owner)
        self._peers[node, owner].send(letter)

    async def close(self) -> None:
        """End every stream."""
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))


class Peer:
    """Another node, to which a stream is kept open from the first letter on."""

    def __init__(self, peers: Peers, node: str, owner: str) -> None:
        self._node, self._on_lost, self._on_returned = node, peers.on_lost, peers.on_returned
        self._metadata = acting_for(owner)
        self._letters: list[Letter] = []
        self._wake = asyncio.Event()
        self._channel = RenewedChannel(functools.partial(peers.open_channel, node), peers.certificate)
        self._task = asyncio.create_task(self._keep_stream())

    def send(self, letter: Letter) -> None:
        """Send a letter, after those before it."""
        self._letters.append(letter)
        self._wake.set()

    async def _keep_stream(self) -> None:
        while True:
            await self._wake.wait()
            if not await self._connect():
                self._lose(_AWAY + (_UP if is_local(self._node) else ""))
                continue
            stream = self._channel.stub.Mail(metadata=self._metadata)
            # What is written to a stream that could not begin waits for ever: so its end is waited for apart.
            works = {asyncio.ensure_future(self._write_all(stream)), asyncio.ensure_future(stream.code())}
            try:
                await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stream.cancel()
                for work in works:
                    work.cancel()
                for result in await asyncio.gather(*works, return_exceptions=True):
                    _log.info("mail to %s has ended: %r", self._node, result)
            self._lose(BROKEN)

    async def _connect(self) -> bool:
        """Return whether the node answers."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._channel.renew().channel.channel_ready()
                return True
        return False

    def _lose(self, why: str) -> None:
        self._letters = []
        self._wake.clear()
        self._on_lost(self._node, why)

    async def _write_all(self, stream: Any) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._write(stream, self._taken())

    def _taken(self) -> list[Letter]:
        """Return what is to be sent; nobody else keeps it, for its content goes with it."""
        letters, self._letters = self._letters, []
        return letters

    async def _write(self, stream: Any, letters: list[Letter]) -> None:
        batch, size_bytes = pb.Envelopes(), 0
        for letter in letters:
            if letter.blob is not None and not await self._put(letter.envelope, letter.blob):
                continue
            batch.envelopes.append(letter.envelope if letter.blob is None else letter.naming(letter.blob.path.name))
            size_bytes += len(letter.envelope.body)
            if size_bytes > BATCH_BYTES:
                await stream.write(batch)
                batch, size_bytes = pb.Envelopes(), 0
        if batch.envelopes:
            await stream.write(batch)

    async def _put(self, envelope: Envelope, blob: Blob) -> bool:
        """Store the content of a letter on the other node; return False when that can not be done.

        Raises:
            grpc.aio.AioRpcError: the node does not answer.
        """
        try:
            await self._channel.stub.PutBlob(_chunks(blob.path), metadata=self._metadata)
        except OSError as error:
            self._on_returned(envelope, error)
            return False
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise
            self._on_returned(envelope, translate(error, self._node))
            return False
        return True

    async def close(self) -> None:
        """End the stream."""
        self._task.cancel()
        await self._channel.close()


async def _chunks(path: Path) -> AsyncIterator[pb.BlobChunk]:
    with path.open("rb") as file:
        first = pb.BlobChunk(blob=path.name, data=file.read(config.CHUNK_BYTES))
        yield first
        while data := file.read(config.CHUNK_BYTES):
            yield pb.BlobChunk(data=data)
