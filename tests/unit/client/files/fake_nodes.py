"""Nodes that take files, as plain objects: what they have can be read, and how they fail is said by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from monarch_nb.allocator.files.node_files import NodeFiles
from monarch_nb.allocator.state.state import Lease
from monarch_nb.client.connections.connection import Connection
from monarch_nb.config import NodePaths
from monarch_nb.errors import FilesError, MonarchNbError, NodeUnreachable
from monarch_nb.files.content import unpack
from monarch_nb.proto import files_pb2 as pb
from monarch_nb.proto.allocator_pb2 import ReserveRequest
from monarch_nb.rpc.channel import open_channel
from monarch_nb.rpc.status import error_to_json


class FakeNode:
    """A node's side of a connection, and the connection.

    Attributes:
        error: what it answers to each change. unreachable: it does not answer at all.
        blind: it does not see what the client has.
        loses_content: how many streams of content pass it by.
    """

    def __init__(self, name: str, everyone: dict[str, FakeNode]) -> None:
        self.name, self.node_address, self._everyone = name, f"unix:/{name}", everyone
        everyone[name] = self
        self.error: MonarchNbError | None = None
        self.unreachable, self.loses_content, self.blind = False, 0, False
        self.versions: dict[str, str] = {}
        self.sources: dict[str, str] = {}
        self.trees: dict[str, dict[bytes, pb.TreeEntry]] = {}
        self.came: dict[bytes, bytes] = {}
        self.asked: list[pb.SyncTreeRequest] = []
        self._pending: dict[str, pb.SyncTreeRequest] = {}
        self.lease = Lease(ReserveRequest(), [])

    def content(self, mount: str = "") -> dict[str, bytes]:
        """What the files of a mount hold."""
        return {
            entry.path.decode(): self.came[entry.hash]
            for entry in self.trees.get(mount, {}).values()
            if entry.kind == pb.TreeEntry.KIND_FILE
        }

    async def unary(self, method: str, request: Any, timeout_s: float = 0.0) -> Any:
        self._answer()
        if method == "Workspace":
            mounts = [
                pb.MountStatus(mount=mount, source=self.sources[mount], version=version)
                for mount, version in self.versions.items()
            ]
            return pb.WorkspaceReply(mounts=mounts)
        if method == "ChangeFiles":
            return pb.ChangeFilesReply(files=self.lease.change_files(request))
        if method == "SeeToken":
            return pb.SeeTokenReply(why_not="there is nothing" if self.blind else "")
        assert method == "SyncTree"
        nodes = [self, *(self._everyone[peer.node_id] for peer in request.peers)]
        return pb.SyncTreeReply(nodes=[node._take(request) for node in nodes])

    async def send_stream(
        self, method: str, messages: AsyncIterator[pb.PutFilesRequest], timeout_s: float = 0.0
    ) -> pb.PutFilesReply:
        assert method == "PutFiles"
        nodes, mount = [self], ""
        batches: list[pb.ContentBatch] = []
        async for message in messages:
            self._answer()
            nodes += [self._everyone[peer.node_id] for peer in message.peers]
            mount = mount or message.mount
            batches += [message.batch] if message.HasField("batch") else []
        answers = []
        for node in nodes:
            request = pb.SyncTreeRequest.FromString(node._pending[mount].SerializeToString())
            request.content.extend([] if node.loses_content else batches)
            node.loses_content = max(0, node.loses_content - 1)
            answers.append(node._taken(request))
        return pb.PutFilesReply(nodes=answers)

    def _answer(self) -> None:
        if self.unreachable:
            raise NodeUnreachable(f"{self.name} does not answer", self.name)

    def _take(self, request: pb.SyncTreeRequest) -> pb.NodeSynced:
        self.asked.append(pb.SyncTreeRequest.FromString(request.SerializeToString()))
        return self._taken(request)

    def _taken(self, request: pb.SyncTreeRequest) -> pb.NodeSynced:
        change = request.change
        answer = pb.NodeSynced(node_id=self.name)
        if self.unreachable:
            answer.error_json = error_to_json(NodeUnreachable(f"{self.name} does not answer", self.name))
            return answer
        if self.error is not None:
            answer.error_json = error_to_json(self.error)
            return answer
        if not change.whole and change.base != self.versions.get(change.mount):
            answer.needs_whole = True
            return answer
        self._pending[change.mount] = request
        hashes = {entry.path: entry.hash for entry in change.changed}
        for piece in (piece for batch in request.content for piece in unpack(batch)):
            self.came[hashes[piece.path]] = bytes(piece.data)
        wanted = [entry for entry in change.changed if entry.kind == pb.TreeEntry.KIND_FILE]
        if missing := [entry.path for entry in wanted if entry.hash not in self.came]:
            answer.missing.paths.extend(missing)
            return answer
        answer.applied.CopyFrom(self._apply(change))
        return answer

    def _apply(self, change: pb.TreeChange) -> pb.TreeApplied:
        tree = self.trees.setdefault(change.mount, {})
        removed = list(change.removed)
        if change.whole:
            removed = list(tree.keys() - {entry.path for entry in change.changed})
        for path in removed:
            tree.pop(path)
        written = 0
        for entry in change.changed:
            if tree.get(entry.path) != entry:
                tree[entry.path] = entry
                written += entry.kind != pb.TreeEntry.KIND_DIRECTORY
        self.versions[change.mount], self.sources[change.mount] = change.version, change.source
        return pb.TreeApplied(written=written, removed=len(removed))


def fake_nodes(count: int) -> list[FakeNode]:
    everyone: dict[str, FakeNode] = {}
    return [FakeNode(f"node{number}", everyone) for number in range(count)]


def connections(nodes: list[FakeNode]) -> list[Connection]:
    """The nodes as what the client takes them for."""
    found: list[Any] = list(nodes)
    return found


DISK_FULL = FilesError("node1: no space left on device; its files are as they were", "node1")
DISK_RESERVATION = "r1"


class DiskNode:
    """A node's files, without a wire in between; `asked` has the changes that came."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name, self.node_address = name, f"unix:{directory}/{name}"
        (directory / name).mkdir()
        self.files = NodeFiles(name, NodePaths(directory / name), lambda _: "", open_channel)
        self.tree = self.files.workspaces.directory(DISK_RESERVATION)
        self.asked: list[pb.SyncTreeRequest] = []
        self.is_up = True
        self.lease = Lease(ReserveRequest(), [])
        self.after_sync: Callable[[], None] = lambda: None

    async def unary(self, method: str, request: Any, _: float = 0) -> Any:
        if not self.is_up:
            raise NodeUnreachable(f"{self.name} does not answer", self.name)
        if method == "Workspace":
            return self.files.workspaces.status(DISK_RESERVATION, look=request.look, coming=request.coming)
        if method == "ChangeFiles":
            return pb.ChangeFilesReply(files=self.lease.change_files(request))
        assert method == "SyncTree"
        self.asked.append(pb.SyncTreeRequest.FromString(request.SerializeToString()))
        alone = pb.SyncTreeRequest.FromString(request.SerializeToString())
        del alone.peers[:]
        reply = await self.files.sync(alone, asyncio.Event())
        for peer in request.peers:
            await self.pass_on(peer.node_id, alone, reply)
        self.after_sync()
        return reply

    async def pass_on(self, name: str, request: pb.SyncTreeRequest, reply: pb.SyncTreeReply) -> None:
        raise NotImplementedError

    async def send_stream(self, method: str, messages: AsyncIterator[Any], _: float) -> Any:
        assert method == "PutFiles"
        return await self.files.put_files(messages)
