"""Bringing a change of a tree to many nodes: sent to one of them, passed on from node to node, until all have it.

Everything here runs on the background loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from monarch_nb.client.connections.connection import Connection
from monarch_nb.config import patience
from monarch_nb.errors import FilesError, MonarchNbError, NodeUnreachable
from monarch_nb.files.chunks import BATCH_BYTES, HASH_BYTES, Buffer, pack
from monarch_nb.files.tree import chunk_hashes
from monarch_nb.proto import files_pb2 as pb
from monarch_nb.rpc.status import error_from_json

SYNC_TIMEOUT_S = patience(900.0)
INLINE_BYTES = 256 << 10
"""New content up to this size travels with the change itself."""
EXTRA_ROUNDS = 3

Read = Callable[[Iterable[bytes]], Iterator[tuple[bytes, Buffer]]]
"""Yields the content of chunks, in any order."""


@dataclass
class Transfer:
    """What became of a change.

    Attributes:
        applied: by node. failed: why not, by node; one that has it now is in there no longer.
        sent_bytes: that left this process: content, compressed, and what was said about it.
        total_bytes, done_bytes: of content, for progress.
    """

    applied: dict[str, pb.TreeApplied] = field(default_factory=dict)
    failed: dict[str, MonarchNbError] = field(default_factory=dict)
    sent_bytes: int = 0
    total_bytes: int = 0
    done_bytes: int = 0


class Sender:
    """Sends one change.

    Args:
        reservation_id: whose workspaces.
        whole: returns the change as the whole list of entries, for nodes that have another base.
        read: gives the content of chunks.
        overwrite: also files that ranks changed.
        progress: called after each piece.
    """

    def __init__(
        self,
        reservation_id: str,
        whole: Callable[[], pb.TreeChange],
        read: Read,
        *,
        overwrite: bool = False,
        progress: Callable[[Transfer], None] = lambda _: None,
    ) -> None:
        self._reservation_id, self._whole, self._read = reservation_id, whole, read
        self._overwrite, self._progress = overwrite, progress
        self.transfer = Transfer()

    async def send(self, connections: Sequence[Connection], change: pb.TreeChange, new: Sequence[bytes]) -> Transfer:
        """Bring `change` to all nodes.

        Args:
            new: hashes of the chunks that no node can have yet; sent along when they are small.
        """
        work = [(list(connections), self._request(change, new))]
        for _ in range(2 + EXTRA_ROUNDS + len(connections)):
            if not work:
                break
            on_nodes, request = work.pop()
            work += await self._round(on_nodes, request)
        for name in (connection.name for connection in connections if connection.name not in self.transfer.applied):
            unfinished = FilesError(f"{name} does not get all the files that it needs: sync again", name)
            self.transfer.failed.setdefault(name, unfinished)
        return self.transfer

    def _request(self, change: pb.TreeChange, new: Sequence[bytes] = ()) -> pb.SyncTreeRequest:
        request = pb.SyncTreeRequest(reservation_id=self._reservation_id, change=change, overwrite=self._overwrite)
        if new:
            request.chunks.append(pack(list(self._read(new))))
        return request

    async def _round(
        self, connections: list[Connection], request: pb.SyncTreeRequest
    ) -> list[tuple[list[Connection], pb.SyncTreeRequest]]:
        """Ask nodes once; return what is still to be done."""
        by_name = {connection.name: connection for connection in connections}
        lacking_base: list[Connection] = []
        lacking_chunks: list[Connection] = []
        missing: dict[bytes, None] = {}
        for node in await self._ask(connections, request):
            connection = by_name[node.node_id]
            match node.WhichOneof("outcome"):
                case "applied":
                    self.transfer.applied[node.node_id] = node.applied
                    self.transfer.failed.pop(node.node_id, None)
                case "needs_whole":
                    lacking_base.append(connection)
                case "missing":
                    lacking_chunks.append(connection)
                    names = node.missing
                    missing |= dict.fromkeys(names[at : at + HASH_BYTES] for at in range(0, len(names), HASH_BYTES))
                case "error_json":
                    self.transfer.failed[node.node_id] = error_from_json(node.error_json)
        work = []
        if lacking_base:
            work.append((lacking_base, self._request(self._whole())))
        if lacking_chunks:
            failed = await self._send_chunks(lacking_chunks, request.change, list(missing))
            lacking_chunks = [connection for connection in lacking_chunks if connection.name not in failed]
            again = pb.SyncTreeRequest(reservation_id=self._reservation_id, overwrite=self._overwrite, pending=True)
            for name in ("mount", "source", "version"):
                setattr(again.change, name, getattr(request.change, name))
            if lacking_chunks:
                work.append((lacking_chunks, again))
        return work

    async def _ask(self, connections: list[Connection], request: pb.SyncTreeRequest) -> list[pb.NodeSynced]:
        """Send to the first node that answers; it passes it on to the others."""
        for number, connection in enumerate(connections):
            del request.peers[:]
            request.peers.extend(_peers(connections[number + 1 :]))
            self.transfer.sent_bytes += request.ByteSize()
            try:
                reply: pb.SyncTreeReply = await connection.unary("SyncTree", request, SYNC_TIMEOUT_S)
            except NodeUnreachable as error:
                self.transfer.failed[connection.name] = error
            else:
                return list(reply.nodes)
        return []

    async def _send_chunks(
        self, connections: list[Connection], change: pb.TreeChange, missing: list[bytes]
    ) -> dict[str, MonarchNbError]:
        """Stream content to nodes; return which of them could not keep it. One that was lost on the way is asked again
        afterwards: the call finds out whether it is dead."""
        first = pb.PutChunksRequest(
            reservation_id=self._reservation_id,
            mount=change.mount,
            version=change.version,
            peers=_peers(connections[1:]),
        )
        self.transfer.total_bytes = _size_bytes(change, set(missing)) or self.transfer.total_bytes
        self.transfer.done_bytes = 0
        try:
            reply = await connections[0].send_stream("PutChunks", self._messages(first, missing), SYNC_TIMEOUT_S)
        except NodeUnreachable as error:
            self.transfer.failed[connections[0].name] = error
            return {connections[0].name: error}
        failed = {node.node_id: error_from_json(node.error_json) for node in reply.nodes if node.error_json}
        failed = {name: error for name, error in failed.items() if not isinstance(error, NodeUnreachable)}
        self.transfer.failed |= failed
        return failed

    async def _messages(self, first: pb.PutChunksRequest, missing: list[bytes]) -> AsyncIterator[pb.PutChunksRequest]:
        """Yield the stream's messages; the next batch is read and compressed while the last one is sent."""
        yield first
        batches = _batches(self._read(missing))
        coming = asyncio.ensure_future(asyncio.to_thread(next, batches, None))
        while (batch := await coming) is not None:
            coming = asyncio.ensure_future(asyncio.to_thread(next, batches, None))
            yield (request := pb.PutChunksRequest(batch=batch))
            self.transfer.sent_bytes += request.ByteSize()
            self.transfer.done_bytes += sum(batch.sizes_bytes)
            self._progress(self.transfer)


def _batches(chunks: Iterator[tuple[bytes, Buffer]]) -> Iterator[pb.ChunkBatch]:
    together: list[tuple[bytes, Buffer]] = []
    size_bytes = 0
    for name, data in chunks:
        if together and size_bytes + len(data) > BATCH_BYTES:
            yield pack(together)
            together, size_bytes = [], 0
        together.append((name, data))
        size_bytes += len(data)
    if together:
        yield pack(together)


def _peers(connections: Iterable[Connection]) -> list[pb.Peer]:
    return [pb.Peer(node_id=connection.name, address=connection.node_address) for connection in connections]


def _size_bytes(change: pb.TreeChange, names: set[bytes]) -> int:
    sizes: dict[bytes, int] = {}
    for entry in change.changed:
        sizes.update(zip(chunk_hashes(entry), entry.sizes_bytes, strict=True))
    return sum(size for name, size in sizes.items() if name in names)
