"""Nodes that hold files and nothing else: the real service and workspaces, many in one process, without ranks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

from monarch_nb.allocator.api.guard import Guard
from monarch_nb.allocator.api.service import AllocatorService
from monarch_nb.allocator.files.node_files import NodeFiles
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.files.transfer import Sender, Transfer
from monarch_nb.config import NodePaths
from monarch_nb.files.content import PIECE_BYTES, Piece, new_hash
from monarch_nb.proto import files_pb2 as pb
from monarch_nb.rpc.channel import make_server, open_channel

RESERVATION = "r1"


class FileNode:
    """One node: its files, its server, and a byte-counting door for the client."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name, self.paths = name, NodePaths(directory / name)
        self.paths.directory.mkdir()
        self.files = NodeFiles(name, self.paths, lambda _: "", open_channel)
        self.files.workspaces.directory(RESERVATION)  # as spawning does
        self.address = f"unix:{directory / name}.sock"
        self.door = f"unix:{directory / name}.door"
        self.from_client_bytes = 0
        self.server: Any = None
        self._door: asyncio.Server | None = None

    @property
    def tree(self) -> Path:
        """What ranks would see."""
        return self.files.workspaces.directory(RESERVATION)

    async def start(self) -> None:
        identity, state = SimpleNamespace(node_id=self.name), SimpleNamespace(lease=lambda _: None)
        node = Mock(identity=identity, files=self.files, state=state)
        access = MagicMock(node_id=self.name)  # nobody asks it for anything but files
        self.server = make_server()
        Guard(AllocatorService(node, access), access, self.paths.directory).serve_on(self.server)
        self.server.add_insecure_port(self.address)
        await self.server.start()
        self._door = await asyncio.start_unix_server(self._let_through, self.door.removeprefix("unix:"))

    async def die(self) -> None:
        """Stop answering, also in the middle of a call."""
        await self.server.stop(grace=None)

    async def close(self) -> None:
        assert self._door is not None
        self._door.close()
        await self.server.stop(grace=None)
        await self.files.close()

    async def _let_through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inside_reader, inside_writer = await asyncio.open_unix_connection(self.address.removeprefix("unix:"))
        except OSError:
            writer.close()
            return

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, count: Callable[[int], None]) -> None:
            try:
                while data := await source.read(1 << 16):
                    count(len(data))
                    sink.write(data)
                    await sink.drain()
            finally:
                for end in (writer, inside_writer):
                    end.close()

        def count(size_bytes: int) -> None:
            self.from_client_bytes += size_bytes

        await asyncio.gather(
            pump(reader, inside_writer, count), pump(inside_reader, writer, lambda _: None), return_exceptions=True
        )


@asynccontextmanager
async def file_nodes(directory: Path, count: int) -> AsyncIterator[list[FileNode]]:
    """Serve so many nodes."""
    async with AsyncExitStack() as stack:
        nodes = []
        for number in range(count):
            node = FileNode(directory, f"node{number}")
            stack.push_async_callback(node.close)
            await node.start()
            nodes.append(node)
        yield nodes


class Content:
    """A tree that a client has, in memory."""

    def __init__(self, **files: bytes) -> None:
        self.data = {name.encode(): data for name, data in files.items()}
        self.entries = [
            pb.TreeEntry(
                path=path,
                kind=pb.TreeEntry.KIND_FILE,
                mode=0o644,
                size_bytes=len(data),
                modified_ns=1_700_000_000_000_000_000,
                hash=new_hash(data).digest(),
            )
            for path, data in self.data.items()
        ]

    def read(self, entries: Iterable[pb.TreeEntry]) -> Iterator[Piece]:
        for entry in entries:
            for offset in range(0, entry.size_bytes, PIECE_BYTES):
                yield Piece(entry.path, offset, self.data[entry.path][offset : offset + PIECE_BYTES])

    def whole(self, version: str) -> pb.TreeChange:
        return pb.TreeChange(source="here:/project", version=version, whole=True, changed=self.entries)


async def send(nodes: list[FileNode], content: Content, version: str, **options: Any) -> Transfer:
    """Bring content to nodes as a client does, through the door of the first."""
    connections = []
    for number, node in enumerate(nodes):
        connection = Connection(node.name, node.address)
        if not number:
            # The client comes through the door; nodes that pass something on do not.
            connection = _Visitor(node)
        connections.append(connection)
    sender = Sender(RESERVATION, lambda: content.whole(version), content.read, **options)
    try:
        return await sender.send(connections, content.whole(version), [])
    finally:
        for connection in connections:
            await connection.close()


class _Visitor(Connection):
    def __init__(self, node: FileNode) -> None:
        super().__init__(node.name, node.door)
        self.address = node.address


def missing(content: Content, node: FileNode) -> list[bytes]:
    """Return which files of `content` a node does not show as they are."""
    return [
        path
        for path, data in content.data.items()
        if not (there := node.tree / path.decode()).is_file() or there.read_bytes() != data
    ]
